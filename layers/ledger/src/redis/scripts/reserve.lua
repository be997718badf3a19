#!lua
-- with: amounts, calendar, clock, state, money, holds, expiry
-- Holds money for a call (I1). KEYS[5] = the tombstone of the number.
-- ARGV: number, key, want, least, time to live in ms. Returns the amount held and the amount that is free after it; or
-- a refusal: a word, two amounts and, if a ceiling refuses, the ceiling and the index of its month or day.
local number, key = ARGV[1], ARGV[2]
local want, least, ttl = amount(ARGV[3]), amount(ARGV[4]), amount(ARGV[5])

local row = call('HMGET', KEYS[1], 'b', 'h', 's', 'o:' .. number, money_fields(key))
if not row[1] then
  return {'unknown', 0, 0, '', 0}
end
if call('EXISTS', KEYS[5]) == 1 or call('HEXISTS', KEYS[3], number) == 1 then
  return {'gone', 0, 0, '', 0}
end

local now = now_ms()
local balance, held, money = stored(row[1]), stored(row[2]), money_of(row, 5, now)
local group = group_of(money, now)

if row[4] then
  local open_held, open_key, open_want, open_least = parse_hold(row[4])
  if open_key == key and open_want == want and open_least == least then
    local free = room_in(minus(balance, held), money, group, 0)
    return {open_held, free}
  end
  return {'conflict', 0, 0, '', 0}
end

local refused, met = refusal(money, group, row[3], balance)
if refused then
  return {refused, 0, 0, bound_words(met)}
end

-- Ends expired holds and reads the amounts again.
local function expired_some()
  if expire(32, now) == 0 then
    return false
  end
  row = call('HMGET', KEYS[1], 'h', key .. '.h')
  held, money.held = stored(row[1]), stored(row[2])
  group = group_of(money, now)
  return true
end
local function is_full()
  return money.calls and stored(call('HGET', KEYS[1], key .. '.n')) >= money.calls
end
if is_full() and (not expired_some() or is_full()) then
  return {'too_many_calls', money.calls, 0, '', 0}
end

local available, by = room_in(minus(balance, held), money, group, 0)
if available < want and expired_some() then
  available, by = room_in(minus(balance, held), money, group, 0)
end

local granted = math.min(want, available)
if granted < least then
  return {'does_not_fit', available, money.held, bound_words(by)}
end
call('HSET', KEYS[1],
  'h', text(plus(held, granted)),
  key .. '.h', text(plus(money.held, granted)),
  'o:' .. number, string.format('%.0f:%s:%.0f:%.0f', granted, key, want, least))
if group then
  call('HSET', KEYS[1], 'g:' .. group.id .. '.h', text(plus(group.held, granted)))
end
if money.calls then
  count_call(key, 1)
end
call('ZADD', KEYS[2], text(now + ttl), number)
return {granted, minus(available, granted)}

#!lua
-- Days and months of UTC, counted from the first of 1970: calendar.rs has the same.

local function day_of(ms)
  return (ms - ms % 86400000) / 86400000
end

local function month_of(ms)
  local days = day_of(ms) + 719468
  local day = days % 146097
  local era = (days - day) / 146097
  local year = math.floor(
    (day - math.floor(day / 1460) + math.floor(day / 36524) - math.floor(day / 146096)) / 365)
  local day_of_year = day - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month_from_march = math.floor((5 * day_of_year + 2) / 153)
  return (era * 400 + year - 1970) * 12 + month_from_march + 2
end

-- The current month or day of a key that has used so much: its index, what had been used before it, and
-- whether the field has yet to be written. The field has the one of the key's last charge,
-- "<index>:<used before it>". A clock that went back over midnight does not begin it anew.
local function period_of(field, now, used)
  if field then
    local index, before = string.match(field, '^(%d+):(%d+)$')
    index = tonumber(index)
    if index == now or index == now + 1 then
      return index, tonumber(before), false
    end
  end
  return now, used, true
end
-- The usual case of reserve.lua, which comes after it and knows all of them: nothing is known of the
-- number, and the key may have all it wants. Amounts are written as they came.
do
  local call, number, key = redis.call, ARGV[1], ARGV[2]
  local want, least, ttl = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
  local open, key_holds = 'o:' .. number, key .. '.h'
  local row = call('HMGET', KEYS[1], 'b', 'h', 's', open,
    key .. '.s', key_holds, key .. '.l', key .. '.lm', key .. '.ld')
  local balance, held, key_held = tonumber(row[1] or '0'), tonumber(row[2] or '0'), tonumber(row[6] or '0')
  local free, spendable = balance - held, balance > 0
  local time = call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)

  local total, monthly, daily = row[7], row[8], row[9]
  if total or monthly or daily then
    local more = call('HMGET', KEYS[1], key .. '.u', key .. '.m', key .. '.d')
    local used = tonumber(more[1] or '0')
    local function bound(ceiling, before)
      local left = tonumber(ceiling) - math.max(used - before, 0)
      free, spendable = math.min(free, left - key_held), spendable and left > 0
    end
    if total then
      bound(total, 0)
    end
    if monthly then
      local _, before = period_of(more[2], month_of(now), used)
      bound(monthly, before)
    end
    if daily then
      local _, before = period_of(more[3], day_of(now), used)
      bound(daily, before)
    end
  end

  if want and least and ttl and spendable and row[5] == '1' and row[3] ~= '1' and not row[4]
    and 0 <= least and least <= want and want <= free and 0 <= ttl and ttl <= 9007199254740991
    and want % 1 == 0 and least % 1 == 0 and ttl % 1 == 0
    -- Few accounts have expired holds: mostly one question answers both.
    and (call('EXISTS', KEYS[5], KEYS[3]) == 0
      or call('EXISTS', KEYS[5]) == 0 and call('HEXISTS', KEYS[3], number) == 0) then
    -- `call` writes whole numbers as digits, to 10^17.
    call('HSET', KEYS[1], 'h', held + want, key_holds, key_held + want,
      open, ARGV[3] .. ':' .. key .. ':' .. ARGV[3] .. ':' .. ARGV[4])
    call('ZADD', KEYS[2], now + ttl, number)
    return {want, free - want}
  end
end
-- Amounts. Whole numbers within 2^53 are exact, here and as arguments of `call`, which writes them as digits.

local MAX = 9007199254740991
local call, floor = redis.call, math.floor

-- `..` and tostring() write numbers from 10^14 on as 1e+14.
local function text(n)
  return string.format('%.0f', n)
end

-- Amounts among the arguments. A script that finds a bad one has written nothing yet.
local function signed_amount(argument)
  local n = tonumber(argument)
  if not n or n ~= floor(n) or n < -MAX or n > MAX then
    error('not an amount within 2^53: ' .. tostring(argument))
  end
  return n
end

local function amount(argument)
  local n = signed_amount(argument)
  if n < 0 then
    error('a negative amount: ' .. argument)
  end
  return n
end

local function stored(field)
  return tonumber(field or '0')
end

local function plus(a, b)
  return math.min(a + b, MAX)
end

local function minus(a, b)
  return math.max(a - b, 0)
end
-- The server's time.

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
-- The money of a key.

-- The fields of a key's money, in the order in which `money_of` takes them.
local function money_fields(key)
  return key .. '.s', key .. '.u', key .. '.h', key .. '.l', key .. '.lm', key .. '.ld', key .. '.m', key .. '.d'
end

-- The money of a key: `row` has its fields from `at` on. Its bounds are its ceilings with what has been
-- spent under each; the one that begins anew last comes first. Most keys have none.
local function money_of(row, at, now)
  local used, bounds = stored(row[at + 1]), {}
  local total, monthly, daily = row[at + 3], row[at + 4], row[at + 5]
  if total then
    bounds[1] = {ceiling = 'total', limit = tonumber(total), spent = used, index = 0}
  end
  if monthly then
    local month, before = period_of(row[at + 6], month_of(now), used)
    bounds[#bounds + 1] = {
      ceiling = 'month', limit = tonumber(monthly), spent = minus(used, before), index = month}
  end
  if daily then
    local day, before = period_of(row[at + 7], day_of(now), used)
    bounds[#bounds + 1] = {
      ceiling = 'day', limit = tonumber(daily), spent = minus(used, before), index = day}
  end
  return {enabled = row[at], used = used, held = stored(row[at + 2]), bounds = bounds}
end

-- What a key can hold beside its open holds and `beside`, where its account has so much free; and the
-- bound that leaves no more, or nil.
local function room(account, money, beside)
  local held, least, by = plus(money.held, beside), account, nil
  for i = 1, #money.bounds do
    local bound = money.bounds[i]
    local left = minus(bound.limit, plus(bound.spent, held))
    if left < least then
      least, by = left, bound
    end
  end
  return least, by
end

-- The refusal that does not depend on an amount, or nil; then the bound that was met, or nil.
local function refusal(money, suspended, balance)
  if not money.enabled then
    return 'unknown'
  elseif money.enabled ~= '1' then
    return 'disabled'
  elseif suspended == '1' then
    return 'suspended'
  elseif balance <= 0 then
    return 'account_empty'
  end
  for _, bound in ipairs(money.bounds) do
    if bound.spent >= bound.limit then
      return 'used_up', bound
    end
  end
  return nil
end

-- How answers tell of a bound: which ceiling, and of which month or day.
local function told(bound)
  if bound then
    return bound.ceiling, bound.index
  end
  return '', 0
end
-- How holds end. KEYS[2] = holds by due time, KEYS[3] = expired holds, KEYS[4] = when those expired.

local TOMBSTONE_MS = 600000

-- Open holds are fields `o:<number>` of the account, "<held>:<key>:<want>:<least>".
local function parse_hold(value)
  local held, key, want, least = string.match(value, '^(%d+):([^:]+):(%d+):(%d+)$')
  return tonumber(held), key, tonumber(want), tonumber(least)
end

-- Takes an open hold off the books; what it held is given back to the account and its key.
-- The removals come first: they are allowed when the server is out of memory, and what follows a
-- script's first write is allowed too (where flags are not known, before 7.0).
local function close(number, value)
  local held, key = parse_hold(value)
  call('ZREM', KEYS[2], number)
  call('HDEL', KEYS[1], 'o:' .. number)
  local row = call('HMGET', KEYS[1], 'h', key .. '.h')
  call('HSET', KEYS[1],
    'h', text(minus(stored(row[1]), held)),
    key .. '.h', text(minus(stored(row[2]), held)))
  return held, key
end

local function forget_expired(number)
  call('HDEL', KEYS[3], number)
  call('ZREM', KEYS[4], number)
end

-- The first result of an ended hold answers repeats. Its amounts come as text.
local function bury(tombstone, booked, charged, loss)
  call('SET', tombstone, booked .. ':' .. charged .. ':' .. loss, 'PX', TOMBSTONE_MS)
end
-- How holds that are past their time end.

local EXPIRED_MS = 7 * 24 * 3600000
local EXPIRED_PRUNED_MAX = 1000

-- Ends up to `most` holds that are past their time.
local function expire(most, now)
  local due = call('ZRANGEBYSCORE', KEYS[2], '-inf', text(now), 'LIMIT', 0, most)
  local count = 0
  for _, number in ipairs(due) do
    local value = call('HGET', KEYS[1], 'o:' .. number)
    if value then
      local held, key = close(number, value)
      call('HSET', KEYS[3], number, key .. ':' .. text(held))
      call('ZADD', KEYS[4], text(now), number)
      count = count + 1
    else
      call('ZREM', KEYS[2], number)
    end
  end
  if count > 0 then
    local old = call('ZRANGEBYSCORE', KEYS[4], '-inf', '(' .. text(now - EXPIRED_MS),
      'LIMIT', 0, EXPIRED_PRUNED_MAX)
    if #old > 0 then
      call('HDEL', KEYS[3], unpack(old))
      call('ZREM', KEYS[4], unpack(old))
    end
  end
  return count
end
-- with: calendar, reserve_usual, amounts, clock, money, holds, expiry
-- Holds money for a call: I1. KEYS[5] = the number's tombstone.
-- ARGV: number, key, want, least, ttl in ms. Answers what is held and what is free then; or why not: word,
-- amount, amount, the ceiling that refuses it if one does, and of which month or day.
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

if row[4] then
  local open_held, open_key, open_want, open_least = parse_hold(row[4])
  if open_key == key and open_want == want and open_least == least then
    local free = room(minus(balance, held), money, 0)
    return {open_held, free}
  end
  return {'conflict', 0, 0, '', 0}
end

local refused, met = refusal(money, row[3], balance)
if refused then
  return {refused, 0, 0, told(met)}
end

local available, by = room(minus(balance, held), money, 0)
if available < want and expire(32, now) > 0 then
  row = call('HMGET', KEYS[1], 'h', key .. '.h')
  held, money.held = stored(row[1]), stored(row[2])
  available, by = room(minus(balance, held), money, 0)
end

local granted = math.min(want, available)
if granted < least then
  return {'does_not_fit', available, money.held, told(by)}
end
call('HSET', KEYS[1],
  'h', text(plus(held, granted)),
  key .. '.h', text(plus(money.held, granted)),
  'o:' .. number, string.format('%.0f:%s:%.0f:%.0f', granted, key, want, least))
call('ZADD', KEYS[2], text(now + ttl), number)
return {granted, minus(available, granted)}

#!lua flags=allow-oom
-- with: amounts, calendar, clock, state, money, holds, expiry
-- Changes the amount of an open hold. An increase must fit like a new hold (I1).
-- ARGV: number, key, the sequence number of the change within the call, the new amount. Returns 'held' and the amount
-- held now, or 'gone', or 'no_account', or a refusal as reserve.lua does.
local number, key, sequence, wanted = ARGV[1], ARGV[2], amount(ARGV[3]), amount(ARGV[4])

local row = call('HMGET', KEYS[1], 'b', 'h', 's', 'o:' .. number, money_fields(key))
if not row[1] then
  return {'no_account', 0, 0, '', 0}
end
local held, holder, want, least, adjusted = parse_hold(row[4] or '')
if holder ~= key then
  return {'gone', 0, 0, '', 0}
end
if sequence <= adjusted then
  return {'held', held, 0, '', 0}
end

local now = now_ms()
local balance, all_held, money = stored(row[1]), stored(row[2]), money_of(row, 5, now)
local group = group_of(money, now)
if wanted > held then
  local refused, met = refusal(money, group, row[3], balance)
  if refused then
    return {refused, 0, 0, bound_words(met)}
  end
  local more = wanted - held
  local available, by = room_in(minus(balance, all_held), money, group, 0)
  if available < more and expire(32, now) > 0 then
    row = call('HMGET', KEYS[1], 'h', key .. '.h', 'o:' .. number)
    if not row[3] then
      return {'gone', 0, 0, '', 0}
    end
    all_held, money.held = stored(row[1]), stored(row[2])
    group = group_of(money, now)
    available, by = room_in(minus(balance, all_held), money, group, 0)
  end
  if available < more then
    return {'does_not_fit', available, money.held, bound_words(by)}
  end
end
local function resized(sum)
  return text(plus(minus(sum, held), wanted))
end
-- The first write is a removal, for the reason given at `close`.
call('ZREM', KEYS[2], '')
call('HSET', KEYS[1],
  'h', resized(all_held),
  key .. '.h', resized(money.held),
  'o:' .. number, string.format('%.0f:%s:%.0f:%.0f:%.0f', wanted, key, want, least, sequence))
if group then
  call('HSET', KEYS[1], 'g:' .. group.id .. '.h', resized(group.held))
end
return {'held', wanted, 0, '', 0}

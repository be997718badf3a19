#!lua flags=allow-oom
-- Charges a call and ends its hold, once: I3, I5.
-- KEYS[5] = the number's tombstone, KEYS[6] = the journal, KEYS[7] = the receipt's place in it.
-- ARGV: number, key, cost, fresh (0 or 1), what the caller held, the receipt's item, retention in ms.
-- A number that was never held, or so long ago that it may have been settled, moves nothing and leaves
-- one entry to look into.
-- Answers: how it was booked, charged, loss, whether that is the first result repeated (0 or 1).
local number, cost, caller_held, retention = ARGV[1], amount(ARGV[3]), amount(ARGV[5]), amount(ARGV[7])

local row = redis.call('HMGET', KEYS[1], 'b', 'o:' .. number, ARGV[2] .. '.s')
if not row[1] then
  return {'no_account', 0, 0, 0}
end
local first = redis.call('GET', KEYS[5])
if first then
  local booked, charged, loss = string.match(first, '^([^:]+):(%d+):(%d+)$')
  return {booked, tonumber(charged), tonumber(loss), 1}
end

local now = now_ms()
local function journal(key, booked, charged, loss)
  local place = redis.call('XADD', KEYS[6], 'MINID', '~', text(math.max(now - retention, 0)), '*',
    'kind', 'call', 'at', text(now), 'number', number, 'key', key, 'held', text(caller_held), 'cost', text(cost),
    'charged', text(charged), 'loss', text(loss), 'booked', booked, 'item', ARGV[6])
  redis.call('SET', KEYS[7], place, 'PX', text(retention))
end

-- A receipt outlives its tombstone and tells what was done. A hold that came back meanwhile, by a
-- RESERVE that was sent twice, ends without a second charge.
local place = redis.call('GET', KEYS[7])
local entry = place and redis.call('XRANGE', KEYS[6], place, place)[1]
local receipt = {}
for i = 1, entry and #entry[2] or 0, 2 do
  receipt[entry[2][i]] = entry[2][i + 1]
end
if receipt.booked and receipt.booked ~= 'stale' then
  if row[2] then
    close(number, row[2])
  end
  forget_expired(number)
  return {receipt.booked, tonumber(receipt.charged), tonumber(receipt.loss), 1}
end

local key, held, booked = ARGV[2], 0, 'forced'
local expired = redis.call('HGET', KEYS[3], number)
-- A settlement on another key than its hold's is nobody's.
local holder = key
if row[2] then
  holder = select(2, parse_hold(row[2]))
elseif expired then
  holder = string.match(expired, '^([^:]+):')
end
if holder ~= key then
  if not place then
    journal(key, 'stale', 0, 0)
  end
  return {'stale', 0, 0, 0}
end
if row[2] then
  held = close(number, row[2])
  booked = 'held'
elseif expired then
  forget_expired(number)
  booked = 'late'
else
  if ARGV[4] ~= '1' or not row[3] then
    if not place then
      journal(key, 'stale', 0, 0)
    end
    return {'stale', 0, 0, 0}
  end
end

row = redis.call('HMGET', KEYS[1], 'b', 'h', 'loss', money_fields(key))
local money = money_of(row, 4, now)
-- The hold was promised: it pays even where a ceiling has been lowered since.
local beside = 0
if money.enabled then
  beside = room(minus(stored(row[1]), plus(stored(row[2]), held)), money, held)
end
local charged = math.min(cost, plus(held, beside))
local loss = minus(cost, charged)

redis.call('HSET', KEYS[1],
  'b', text(minus(stored(row[1]), charged)),
  'loss', text(plus(stored(row[3]), loss)))
if money.enabled then
  redis.call('HSET', KEYS[1], key .. '.u', text(plus(money.used, charged)))
  for part, period in pairs({['.m'] = money.month, ['.d'] = money.day}) do
    if period.is_new then
      redis.call('HSET', KEYS[1], key .. part, text(period.index) .. ':' .. text(period.before))
    end
  end
end
bury(KEYS[5], booked, charged, loss)
journal(key, booked, charged, loss)
return {booked, charged, loss, 0}

#!lua
-- with: amounts, clock, journal, events
-- Books a payment or a correction, once per id. KEYS[2] = the entries, KEYS[3] = the journal, KEYS[4] = the account's
-- events.
-- ARGV: id, amount (signed), reason (empty for a payment), retention of the journal line in ms. Returns a result word.
local change, retention = signed_amount(ARGV[2]), amount(ARGV[4])
local row = redis.call('HMGET', KEYS[1], 'b', 'h', 'lo')
if not row[1] then
  return 'not_found'
end
local known = redis.call('HGET', KEYS[2], ARGV[1])
if known then
  return tonumber(known) == change and 'ok' or 'exists'
end
local balance = stored(row[1]) + change
if balance > MAX then
  return 'above_max'
end
if change < 0 and balance < stored(row[2]) then
  return 'below_held'
end
redis.call('HSET', KEYS[2], ARGV[1], text(change))
redis.call('HSET', KEYS[1], 'b', text(balance))
local now = now_ms()
add_line(KEYS[3], now, retention, true,
  'kind', 'entry', 'at', text(now), 'id', ARGV[1], 'amount', text(change), 'reason', ARGV[3])
emit(KEYS[4], now, retention, ARGV[3] == '' and 'top_up' or 'correction', 'id', ARGV[1], 'amount', text(change),
  'reason', ARGV[3], 'balance', text(balance))
local level = passed(row[3], stored(row[1]), balance)
if level then
  emit(KEYS[4], now, retention, 'balance_low', 'level', text(level), 'balance', text(balance), 'by', ARGV[1])
end
return 'ok'

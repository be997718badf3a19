#!lua flags=no-writes
-- with: amounts
-- Reads one account as operators see it. KEYS[2] = its key records, KEYS[3] = its holds by expiry time.
-- Returns nil if the account does not exist, or: name, suspended, balance, held, loss, spent, number of open holds.
local row = redis.call('HMGET', KEYS[1], 'name', 's', 'b', 'h', 'loss')
if not row[3] then
  return false
end
local spent = 0
for _, key in ipairs(redis.call('HKEYS', KEYS[2])) do
  spent = plus(spent, stored(redis.call('HGET', KEYS[1], key .. '.u')))
end
local holds = #redis.call('ZRANGE', KEYS[3], 0, -1)
return {row[1] or '', stored(row[2]), stored(row[3]), stored(row[4]), stored(row[5]), spent, holds}

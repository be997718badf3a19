#!lua
-- with: amounts, clock
-- Returns the tariff version in force, after creating a new one if the fingerprint differs. KEYS[1] = tg:sys. ARGV:
-- fingerprint. Returns: id, Unix time in ms from which the version is in force.
local row = redis.call('HMGET', KEYS[1], 'tariff', 'tariff_id', 'tariff_from')
if row[1] == ARGV[1] then
  return {stored(row[2]), stored(row[3])}
end
local id, now = stored(row[2]) + 1, now_ms()
redis.call('HSET', KEYS[1], 'tariff', ARGV[1], 'tariff_id', text(id), 'tariff_from', text(now))
return {id, now}

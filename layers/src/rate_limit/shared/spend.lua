#!lua
-- Usage of a key over all gateways: a bucket that refills. KEYS[1] = a hash: u is the amount taken and not refilled, at
-- is the time for which u is valid, in microseconds of the server's clock, and each gateway has a field with the number
-- of its newest batch, so that no batch is counted twice. ARGV: microseconds, units in that time, the gateway, the
-- batch's number, the batch's units (0: a query only). Returns the amount taken, in thousandths of a unit.
local per, count, units = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[5])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local was = redis.call('HMGET', KEYS[1], 'u', 'at', ARGV[3])
local at = tonumber(was[2] or now)
if at > now then
  -- The clock went back: refilling starts again from now. This is stored at once, because callers who only wait take
  -- nothing.
  at = now
  redis.call('HSET', KEYS[1], 'at', string.format('%.0f', now))
end
local taken = math.max(0, tonumber(was[1] or '0') - (now - at) * count / per)
if units > 0 and was[3] ~= ARGV[4] then
  taken = taken + units
  redis.call('HSET', KEYS[1], 'u', string.format('%.6f', taken), 'at', string.format('%.0f', now), ARGV[3], ARGV[4])
  local full_ms = math.min(math.ceil(taken * per / count / 1000), 1e12)
  -- The hash is kept for ten seconds after the bucket has refilled completely, because a gateway may send its last
  -- batch again.
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', full_ms + 10000))
end
return math.ceil(taken * 1000)

-- Reserves a part of the limit over all accounts. KEYS[1] = bytes of all stored responses, by the hour in which they
-- were stored. ARGV: additional bytes (negative to give bytes back), the limit, how long responses are stored in ms.
-- Returns whether the bytes were available.
local HOUR = 3600000
local now = tonumber(redis.call('TIME')[1]) * 1000
local hour, oldest = math.floor(now / HOUR), math.floor((now - tonumber(ARGV[3])) / HOUR)
local bytes, all = tonumber(ARGV[1]), redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if tonumber(all[i]) < oldest then
    redis.call('HDEL', KEYS[1], all[i])
  else
    bytes = bytes + tonumber(all[i + 1])
  end
end
if tonumber(ARGV[1]) > 0 and bytes > tonumber(ARGV[2]) then
  return 0
end
redis.call('HINCRBY', KEYS[1], string.format('%d', hour), ARGV[1])
redis.call('PEXPIRE', KEYS[1], string.format('%d', tonumber(ARGV[3]) + 2 * HOUR))
return 1

-- KEYS[1] = the claim. ARGV: number, lease in ms. Answers whether the call is still this number's.
local row = redis.call('HMGET', KEYS[1], 'n', 's')
if row[1] ~= ARGV[1] or row[2] ~= 'running' then
  return 0
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('HSET', KEYS[1], 'u', string.format('%d', now + tonumber(ARGV[2])))
return 1

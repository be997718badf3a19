-- Renews a claim. KEYS[1] = the claim. ARGV: number, how long the call keeps the claim in ms. Returns whether the call
-- with this number still has the claim.
local row = redis.call('HMGET', KEYS[1], 'n', 's', 'x')
if row[1] ~= ARGV[1] or row[2] ~= 'running' then
  return 0
end
local time = redis.call('TIME')
local runs_until = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + tonumber(ARGV[2])
redis.call('HSET', KEYS[1], 'u', string.format('%d', runs_until))
-- The claim of an in-flight call must not expire.
if row[3] and tonumber(row[3]) < runs_until then
  redis.call('HSET', KEYS[1], 'x', string.format('%d', runs_until))
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1

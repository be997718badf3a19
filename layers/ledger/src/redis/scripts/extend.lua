#!lua flags=allow-oom
-- with: amounts, clock
-- Makes a hold live for ARGV[2] ms from now. ARGV: number, ttl in ms. Returns whether the hold existed.
local ttl = amount(ARGV[2])
if redis.call('HEXISTS', KEYS[1], 'o:' .. ARGV[1]) == 0 then
  return 0
end
redis.call('ZADD', KEYS[2], text(now_ms() + ttl), ARGV[1])
return 1

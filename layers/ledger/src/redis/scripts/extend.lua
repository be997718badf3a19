#!lua flags=allow-oom
-- with: amounts, clock
-- Sets the expiry of a hold to ARGV[2] ms from now. ARGV: number, time to live in ms. Returns whether the hold existed.
local ttl = amount(ARGV[2])
if redis.call('HEXISTS', KEYS[1], 'o:' .. ARGV[1]) == 0 then
  return 0
end
redis.call('ZADD', KEYS[2], text(now_ms() + ttl), ARGV[1])
return 1

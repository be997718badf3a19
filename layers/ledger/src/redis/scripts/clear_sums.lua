#!lua
-- Deletes all roll-up sums, unless some were written since their names were read. KEYS[1] = the version and the
-- positions of journals, KEYS[2] = the names of all Redis keys with sums, the other KEYS = these Redis keys. ARGV: the
-- version that was read, and the new version. Returns 1 if the sums were deleted.
if (redis.call('HGET', KEYS[1], 'v') or '0') ~= ARGV[1] then
  return 0
end
for key = 1, #KEYS do
  redis.call('UNLINK', KEYS[key])
end
redis.call('HSET', KEYS[1], 'v', ARGV[2])
return 1

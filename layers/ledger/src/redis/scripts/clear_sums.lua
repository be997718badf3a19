#!lua
-- Forgets all sums, unless somebody has written some since their names were read. KEYS[1] = the version and the places of
-- journals, KEYS[2] = the names of all keys with sums, the other keys = sums. ARGV: the version that was read, and
-- the one from then on. Answers 1 if it did.
if (redis.call('HGET', KEYS[1], 'v') or '0') ~= ARGV[1] then
  return 0
end
for key = 1, #KEYS do
  redis.call('UNLINK', KEYS[key])
end
redis.call('HSET', KEYS[1], 'v', ARGV[2])
return 1

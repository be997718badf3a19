#!lua
-- Writes roll-up sums and how far they reach, unless the stored sums were changed since they were read. KEYS[1] = the
-- version and the positions of journals, KEYS[2] = the names of all Redis keys with sums, the other KEYS = sums.
-- ARGV: the version that was read; the new version; the number of positions; for each position, its name and value;
-- then for each of the other KEYS: when it expires in Unix milliseconds, the number of its fields, and its fields and
-- values in turn.
-- Returns 1 if the sums were written.
if (redis.call('HGET', KEYS[1], 'v') or '0') ~= ARGV[1] then
  return 0
end
local at = 4
for _ = 1, tonumber(ARGV[3]) do
  redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
  at = at + 2
end
for key = 3, #KEYS do
  local forgotten, count = ARGV[at], tonumber(ARGV[at + 1])
  at = at + 2
  for _ = 1, count do
    redis.call('HSET', KEYS[key], ARGV[at], ARGV[at + 1])
    at = at + 2
  end
  redis.call('PEXPIREAT', KEYS[key], forgotten)
  redis.call('SADD', KEYS[2], KEYS[key])
end
redis.call('HSET', KEYS[1], 'v', ARGV[2])
return 1

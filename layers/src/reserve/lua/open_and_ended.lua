#!lua flags=no-writes
-- Which of the numbers ARGV are open holds although their tombstones, KEYS[2] and on, are there.
local both = {}
for i, number in ipairs(ARGV) do
  if redis.call('EXISTS', KEYS[i + 1]) == 1 and redis.call('HEXISTS', KEYS[1], 'o:' .. number) == 1 then
    both[#both + 1] = number
  end
end
return both

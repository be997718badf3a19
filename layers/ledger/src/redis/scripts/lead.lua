#!lua
-- Gives a leader lease to the owner ARGV[1] for ARGV[2] ms, unless another owner has it. Returns whether ARGV[1] has it
-- now.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1

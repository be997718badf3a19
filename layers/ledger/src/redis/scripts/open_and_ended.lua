#!lua flags=no-writes
-- Returns those of the numbers ARGV that are open holds although their calls have ended. KEYS[2] = expired holds, and
-- after it the tombstones of the numbers.
local both = {}
for i, number in ipairs(ARGV) do
  local ended = redis.call('EXISTS', KEYS[i + 2]) == 1 or redis.call('HEXISTS', KEYS[2], number) == 1
  if ended and redis.call('HEXISTS', KEYS[1], 'o:' .. number) == 1 then
    both[#both + 1] = number
  end
end
return both

#!lua
-- Reads sums and how far they reach, at one moment. KEYS[1] = the version and the positions of journals, the other keys
-- = sums.
-- ARGV: an account, or nothing for all. Returns the account's positions, or all fields, then the fields of each of the
-- other keys.
local answer = {}
if ARGV[1] == '' then
  answer[1] = redis.call('HGETALL', KEYS[1])
else
  answer[1] = {}
  for _, name in ipairs({'p:' .. ARGV[1], 'e:' .. ARGV[1]}) do
    local place = redis.call('HGET', KEYS[1], name)
    if place then
      table.insert(answer[1], name)
      table.insert(answer[1], place)
    end
  end
end
for at = 2, #KEYS do
  answer[at] = redis.call('HGETALL', KEYS[at])
end
return answer

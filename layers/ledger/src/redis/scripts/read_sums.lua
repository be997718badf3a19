#!lua
-- Reads roll-up sums and how far they reach, at one moment. KEYS[1] = the version and the positions of journals, the
-- other KEYS = sums.
-- ARGV: an account, or nothing for all accounts. Returns the positions of the account (or all fields of KEYS[1]), and
-- then the fields of each of the other KEYS.
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

#!lua
-- Reads sums and how far they go, at one moment. KEYS[1] = the version and the places of journals, the other keys = sums.
-- ARGV: an account, or nothing for all. Answers its place, or all fields, then the fields of each of the other keys.
local answer = {}
if ARGV[1] == '' then
  answer[1] = redis.call('HGETALL', KEYS[1])
else
  local place = redis.call('HGET', KEYS[1], 'p:' .. ARGV[1])
  answer[1] = place and {'p:' .. ARGV[1], place} or {}
end
for at = 2, #KEYS do
  answer[at] = redis.call('HGETALL', KEYS[at])
end
return answer

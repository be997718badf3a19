-- Returns the newest calls of an index as JSON, newest first. KEYS: the calls, their indexes. ARGV: the beginning and
-- the end of the range of the index, and the largest number of calls to return.
local members = redis.call('ZRANGE', KEYS[2], ARGV[2], ARGV[1], 'BYLEX', 'REV', 'LIMIT', 0, ARGV[3])
if #members == 0 then
  return {}
end
for at, member in ipairs(members) do
  members[at] = string.sub(member, -36)
end
return redis.call('HMGET', KEYS[1], unpack(members))

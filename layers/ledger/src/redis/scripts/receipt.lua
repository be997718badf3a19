#!lua flags=no-writes
-- The journal's entry of a call. KEYS[2] = its place in the journal, KEYS[3] = the journal.
-- Answers nil, or the entry's fields and values in turn.
local place = redis.call('GET', KEYS[2])
if not place then
  return false
end
local entry = redis.call('XRANGE', KEYS[3], place, place)[1]
return entry and entry[2] or false

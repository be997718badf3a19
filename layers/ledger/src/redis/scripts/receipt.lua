#!lua flags=no-writes
-- The journal's entry of a call. KEYS[2] = its place in the journal, KEYS[3] = the journal, KEYS[4] = where places of
-- numbers stand that begin like its own. ARGV: its field there. Answers nil, or the entry's fields and values in turn.
for _, place in ipairs({redis.call('GET', KEYS[2]) or '', redis.call('HGET', KEYS[4], ARGV[1]) or ''}) do
  local entry = place ~= '' and redis.call('XRANGE', KEYS[3], place, place)[1]
  if entry then
    return entry[2]
  end
end
return false

#!lua flags=no-writes
-- with: amounts, turns
-- The journal's entry of a call. KEYS[2] = its place in the journal, KEYS[3] = the journal; of numbers that turns of leases
-- have charged, KEYS[4] = where they stand by themselves, KEYS[5] = where the turns stand. ARGV: what the number does not share
-- with others there. Answers nil, or the entry's fields and values in turn.
local function entry_at(place)
  local entry = place and call('XRANGE', KEYS[3], place, place)[1]
  return entry and entry[2]
end
return entry_at(call('GET', KEYS[2]))
  or entry_at(turn_with(ARGV[1], turns_in(KEYS[5])))
  or entry_at(call('HGET', KEYS[4], ARGV[1]))

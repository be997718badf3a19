#!lua flags=no-writes
-- with: amounts, turns
-- Reads the journal entry of a call. KEYS[2] = the entry's position in the journal, KEYS[3] = the journal. For calls
-- that lease turns have charged: KEYS[4] = the hash with individually charged calls, KEYS[5] = the hash with batches.
-- ARGV: the part of the number that differs within these hashes.
-- Returns nil, or the entry's fields and values in turn.
local function entry_at(place)
  local entry = place and call('XRANGE', KEYS[3], place, place)[1]
  return entry and entry[2]
end
return entry_at(call('GET', KEYS[2]))
  or entry_at(turn_with(ARGV[1], turns_in(KEYS[5])))
  or entry_at(call('HGET', KEYS[4], ARGV[1]))

#!lua flags=no-writes
-- Returns the journal positions of calls that lease turns have charged individually. KEYS[2...] = hashes, each for the
-- call numbers of the same 65 s. ARGV: for each call, the index of its hash, counted from 1, and its field in the hash.
-- Returns the position of each call, or an empty text if the hash does not contain the call.
local places = {}
for i = 1, #ARGV, 2 do
  places[#places + 1] = redis.call('HGET', KEYS[1 + ARGV[i]], ARGV[i + 1]) or ''
end
return places

#!lua flags=no-writes
-- The journal positions of single calls that leases were charged for. KEYS[2...] = the hashes of numbers that begin
-- alike. ARGV: for each call, the index of its hash, counted from 1, and its field there. Returns a position for each,
-- or an empty text.
local places = {}
for i = 1, #ARGV, 2 do
  places[#places + 1] = redis.call('HGET', KEYS[1 + ARGV[i]], ARGV[i + 1]) or ''
end
return places

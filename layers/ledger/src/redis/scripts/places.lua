#!lua flags=no-writes
-- Where the entries of calls are that leases were charged for, of those that stand by themselves. KEYS[2...] = the hashes of
-- numbers that begin alike. ARGV: for each call which of them, counted from 1, and its field there. Answers a place for each, or an empty text.
local places = {}
for i = 1, #ARGV, 2 do
  places[#places + 1] = redis.call('HGET', KEYS[1 + ARGV[i]], ARGV[i + 1]) or ''
end
return places

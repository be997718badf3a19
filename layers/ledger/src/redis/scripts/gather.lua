#!lua
-- Gives numbers to the events of an account, in the order of its stream. KEYS[1] = the feed of events, KEYS[2] = for
-- each account, the position of its last numbered event, KEYS[3] = the number of the last event, KEYS[4] = the
-- account's events, only if they are on the same server.
-- ARGV: account; the position of its last numbered event, as the caller has read it; the position of the last event
-- below; how many events are kept; then for each event: its position, how many arguments follow for it, and its fields
-- and values in turn. Returns the number of events that were added. No event is added if another gateway has numbered
-- these events, or if a failover has lost the last of them since the caller read them.
if (redis.call('HGET', KEYS[2], ARGV[1]) or '0-0') ~= ARGV[2] then
  return 0
end
if KEYS[4] and #redis.call('XRANGE', KEYS[4], ARGV[3], ARGV[3]) == 0 then
  return 0
end
local at, added = 5, 0
while at <= #ARGV do
  local count = tonumber(ARGV[at + 1])
  local number = redis.call('INCR', KEYS[3])
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[4], string.format('%.0f-0', number), 'account', ARGV[1],
    unpack(ARGV, at + 2, at + 1 + count))
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[at])
  at, added = at + 2 + count, added + 1
end
return added

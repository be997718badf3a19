#!lua
-- Numbers events of an account, in the account's order. KEYS[1] = the feed, KEYS[2] = how far each account's events are
-- in the feed, KEYS[3] = the last number, KEYS[4] = the account's events, if they are certainly on this server.
-- ARGV: account, how far its events were in the feed, the position of the last of these events, how many events are
-- kept; then for each event: its position, how many words follow, its fields and values in turn. Returns how many were
-- added: none if another gateway was here first, or if the account does not have the last event, because a failover has
-- lost it since it was read.
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

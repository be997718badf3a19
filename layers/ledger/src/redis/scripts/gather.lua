#!lua
-- Gives their numbers to events of an account, in the order in which the account has them. KEYS[1] = the feed,
-- KEYS[2] = how far each account's events are in it, KEYS[3] = the last number.
-- ARGV: account, how far its events were, how many are kept, then for each event: its place, how many words follow, its
-- fields and values in turn. Answers how many were added: none where another gateway was here first.
if (redis.call('HGET', KEYS[2], ARGV[1]) or '0-0') ~= ARGV[2] then
  return 0
end
local at, added = 4, 0
while at <= #ARGV do
  local count = tonumber(ARGV[at + 1])
  local number = redis.call('INCR', KEYS[3])
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[3], string.format('%.0f-0', number), 'account', ARGV[1],
    unpack(ARGV, at + 2, at + 1 + count))
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[at])
  at, added = at + 2 + count, added + 1
end
return added

#!lua
-- with: clock
-- Adds an event, unless it was emitted before. KEYS[1] = the feed of events, KEYS[2] = the mark that it was emitted,
-- KEYS[3] = the number of the last event.
-- ARGV: for how many ms the same event is not emitted again, how many events are kept, and the event's fields and
-- values in turn. Returns whether the event was added.
if not redis.call('SET', KEYS[2], '1', 'NX', 'PX', ARGV[1]) then
  return 0
end
local number = redis.call('INCR', KEYS[3])
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], string.format('%.0f-0', number),
  'at', string.format('%.0f', now_ms()), unpack(ARGV, 3))
return 1

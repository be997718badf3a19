#!lua flags=no-writes
-- with: clock
-- An account with all that belongs to it, at one moment. KEYS[2] = its key records, KEYS[3] = holds by
-- due time, KEYS[4] = entries, KEYS[5] = the journal.
-- Answers nil, or: the account's fields and values in turn, keys and records in turn, numbers and due
-- times in turn, amounts entered, the journal's last place, whether the journal has forgotten nothing, the
-- time in ms.
if redis.call('HEXISTS', KEYS[1], 'b') == 0 then
  return false
end
local last, complete = '0-0', 1
if redis.call('EXISTS', KEYS[5]) == 1 then
  local info, stream = redis.call('XINFO', 'STREAM', KEYS[5]), {}
  for i = 1, #info, 2 do
    stream[info[i]] = info[i + 1]
  end
  last = stream['last-generated-id']
  -- Before 7.0 nobody counts what was added: then nothing is known of what was forgotten.
  complete = stream['entries-added'] == stream['length'] and 1 or 0
end
return {redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2]),
  redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES'), redis.call('HVALS', KEYS[4]), last, complete, now_ms()}

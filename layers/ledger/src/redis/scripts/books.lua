#!lua flags=no-writes
-- with: amounts, clock, journal
-- Reads an account with everything that belongs to it, at one moment. KEYS[2] = its key records, KEYS[3] = its holds by
-- expiry time, KEYS[4] = its entries, KEYS[5] = its journal.
-- Returns nil if the account does not exist, or: the account's fields and values in turn, keys and their records in
-- turn, numbers of holds and their expiry times in turn, the amounts of the entries, the journal's last position, the
-- number of lines that the journal has dropped or lost (-1 if unknown), and the time in ms.
if redis.call('HEXISTS', KEYS[1], 'b') == 0 then
  return false
end
local info = stream_info(KEYS[5])
return {redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2]),
  redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES'), redis.call('HVALS', KEYS[4]), info['last-generated-id'] or '0-0',
  missing_lines(info) or -1, now_ms()}

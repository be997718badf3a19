#!lua flags=allow-oom
-- with: amounts, state, holds
-- Ends a hold without a charge. The tombstone is written even if there is no hold, so that a RESERVE that is still in
-- flight is refused.
-- KEYS[5] = the tombstone of the number. ARGV: number; the lifetime of the tombstone in ms, if it is longer than the
-- default; and 'held', if nothing must be written for a call without an open hold.
local number = ARGV[1]
local row = redis.call('HMGET', KEYS[1], 'b', 'o:' .. number)
if ARGV[3] == 'held' and not row[2] then
  return 0
end
if not row[1] or redis.call('EXISTS', KEYS[5]) == 1 then
  if ARGV[2] then
    redis.call('PEXPIRE', KEYS[5], ARGV[2])
  end
  return 0
end
if row[2] then
  close(number, row[2])
end
forget_expired(number)
bury(KEYS[5], 'released', '0', '0', ARGV[2])
return 1

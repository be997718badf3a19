-- Claims an idempotency key. KEYS[1] = the claim, KEYS[2] = the usage of the account's limits, by the hour in which
-- claims were made: e<hour> claims, b<hour> bytes. ARGV: fingerprint, number, how long the call keeps the claim in ms,
-- how long it is stored in ms, the account's limits of claims and of bytes, and the number of the call whose abandoned
-- claim is taken over (or nothing). Returns 'mine', 'full', or the earlier call: fingerprint, number, state, ms until
-- its claim expires, response.
local HOUR = 3600000
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local number, lease = ARGV[2], tonumber(ARGV[3])
local kept = math.max(tonumber(ARGV[4]), lease)
local runs_until = string.format('%d', now + lease)
local row = redis.call('HMGET', KEYS[1], 'f', 'n', 's', 'u', 'a', 'x')
if row[1] then
  local left = math.max(tonumber(row[4]) - now, 0)
  if row[3] == 'running' and (row[2] == number or (row[2] == ARGV[7] and left == 0)) then
    redis.call('HSET', KEYS[1], 'n', number, 'u', runs_until)
    if row[6] and tonumber(row[6]) < now + lease then
      redis.call('HSET', KEYS[1], 'x', runs_until)
      redis.call('PEXPIRE', KEYS[1], ARGV[3])
    end
    return {'mine'}
  end
  return {'earlier', row[1], row[2], row[3], left, row[5] or ''}
end
local hour = math.floor(now / HOUR)
-- A claim made in this hour may have lived until now, so this hour still counts. Earlier hours do not.
local oldest = math.floor((now - kept) / HOUR)
local calls, bytes, gone = 0, 0, {}
local all = redis.call('HGETALL', KEYS[2])
for i = 1, #all, 2 do
  local amount = tonumber(all[i + 1])
  if tonumber(string.sub(all[i], 2)) < oldest then
    gone[#gone + 1] = all[i]
  elseif string.sub(all[i], 1, 1) == 'e' then
    calls = calls + amount
  else
    bytes = bytes + amount
  end
end
if #gone > 0 then
  redis.call('HDEL', KEYS[2], unpack(gone))
end
if calls >= tonumber(ARGV[5]) or bytes >= tonumber(ARGV[6]) then
  return {'full'}
end
local of_hour = string.format('%d', hour)
redis.call('HSET', KEYS[1], 'f', ARGV[1], 'n', number, 's', 'running', 'u', runs_until, 'h', of_hour, 'x',
  string.format('%d', now + kept))
redis.call('PEXPIRE', KEYS[1], string.format('%d', kept))
redis.call('HINCRBY', KEYS[2], 'e' .. of_hour, 1)
redis.call('PEXPIRE', KEYS[2], string.format('%d', kept + 2 * HOUR))
return {'mine'}

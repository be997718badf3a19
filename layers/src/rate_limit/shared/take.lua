#!lua
-- Requests of a key over all gateways, by GCRA. KEYS[1] = a hash: t is the theoretical arrival time (TAT) in
-- microseconds of the server's clock, and each gateway with permits in memory has a field "<permits> <until, in
-- microseconds>". ARGV: microseconds, requests in that time, burst, the gateway, waiting calls, further permits
-- requested, permits that the gateway has, permits that it returns, microseconds until its permits expire. Returns
-- permits, or as a negative number the microseconds until there is one; 0 if none were requested.
local interval, burst = tonumber(ARGV[1]) / tonumber(ARGV[2]), tonumber(ARGV[3])
local calls, spare, has = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local tat, back, was = 0, tonumber(ARGV[8]), nil
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local field, value = fields[i], fields[i + 1]
  if field == 't' then
    tat = tonumber(value)
  elseif field == ARGV[4] then
    was = value
  else
    local permits, ends = value:match('^(%d+) (%d+)$')
    -- The gateway has neither used nor renewed these permits, so it no longer runs.
    if tonumber(ends) < now then
      back = back + tonumber(permits)
      redis.call('HDEL', KEYS[1], field)
    end
  end
end
-- A TAT is at most a whole burst ahead, unless the clock went back or the limit was lowered.
tat = math.max(now, math.min(tat, now + burst * interval) - back * interval)
local free = math.floor(burst - (tat - now) / interval)
local granted = math.max(0, math.min(calls + spare, free))
tat = tat + granted * interval
has = has + math.max(0, granted - calls)
-- Once the bucket is full and no permit is left, nothing needs to be stored.
local until_us = tat
if has > 0 then
  local ends = now + tonumber(ARGV[9])
  redis.call('HSET', KEYS[1], ARGV[4], string.format('%.0f %.0f', has, ends))
  until_us = math.max(tat, ends)
elseif was then
  redis.call('HDEL', KEYS[1], ARGV[4])
end
if granted + back > 0 then
  redis.call('HSET', KEYS[1], 't', string.format('%.2f', tat))
end
if granted + back + has > 0 then
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.ceil((until_us - now) / 1000) + 1))
end
if granted > 0 or calls + spare == 0 then
  return granted
end
return -math.max(1, math.ceil(tat - now - (burst - 1) * interval))

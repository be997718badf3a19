#!lua
-- GCRA. KEYS[1] = the theoretical arrival time (TAT) in microseconds of the server's clock.
-- ARGV: emission interval in microseconds, burst. Returns microseconds to wait, 0 if the request is admitted.
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
-- A TAT is at most a whole burst ahead, unless the clock went back or the limit was lowered.
local tat = math.min(tonumber(redis.call('GET', KEYS[1]) or '0'), now + burst * interval)
local wait = tat - (burst - 1) * interval - now
if wait > 0 then
  return wait
end
tat = math.max(now, tat) + interval
redis.call('SET', KEYS[1], string.format('%.0f', tat), 'PX', string.format('%.0f', math.ceil((tat - now) / 1000) + 1))
return 0

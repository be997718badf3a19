#!lua
-- Holds money for a call: I1. KEYS[5] = the number's tombstone.
-- ARGV: number, key, want, least, ttl in ms. Answers: word, amount, amount.
local number, key = ARGV[1], ARGV[2]
local want, least, ttl = amount(ARGV[3]), amount(ARGV[4]), amount(ARGV[5])

local row = redis.call('HMGET', KEYS[1], 'b', 'h', 's',
  key .. '.s', key .. '.l', key .. '.u', key .. '.h', 'o:' .. number)
if not row[1] then
  return {'unknown', 0, 0}
end
if redis.call('EXISTS', KEYS[5]) == 1 or redis.call('HEXISTS', KEYS[3], number) == 1 then
  return {'gone', 0, 0}
end

local balance, held = stored(row[1]), stored(row[2])
local ceiling = row[5] and tonumber(row[5])
local used, key_held = stored(row[6]), stored(row[7])

if row[8] then
  local open_held, open_key, open_want, open_least = parse_hold(row[8])
  if open_key == key and open_want == want and open_least == least then
    return {'ok', open_held, free(balance, held, ceiling, used, key_held)}
  end
  return {'conflict', 0, 0}
end

local refused = refusal(row[4], row[3], balance, ceiling, used)
if refused then
  return {refused, 0, 0}
end

local now = now_ms()
local available = free(balance, held, ceiling, used, key_held)
if available < want and expire(32, now) > 0 then
  row = redis.call('HMGET', KEYS[1], 'h', key .. '.h')
  held, key_held = stored(row[1]), stored(row[2])
  available = free(balance, held, ceiling, used, key_held)
end

local granted = math.min(want, available)
if granted < least then
  return {'does_not_fit', available, key_held}
end
redis.call('HSET', KEYS[1],
  'h', text(plus(held, granted)),
  key .. '.h', text(plus(key_held, granted)),
  'o:' .. number, text(granted) .. ':' .. key .. ':' .. text(want) .. ':' .. text(least))
redis.call('ZADD', KEYS[2], text(now + ttl), number)
return {'ok', granted, minus(available, granted)}

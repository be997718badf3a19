-- Stores the outcome of a call in its claim. KEYS: as in claim.lua. ARGV: number, outcome ('answered', 'unanswered' or
-- 'free'), the response, the account's limit of bytes. Returns 'kept', 'was' (the call had an outcome before),
-- 'too_much' or 'not_mine'.
local row = redis.call('HMGET', KEYS[1], 'n', 's', 'h')
if row[1] ~= ARGV[1] then
  return 'not_mine'
end
if row[2] ~= 'running' then
  return 'was'
end
if ARGV[2] == 'free' then
  redis.call('DEL', KEYS[1])
  redis.call('HINCRBY', KEYS[2], 'e' .. row[3], -1)
  return 'kept'
end
if ARGV[2] == 'answered' then
  local bytes, all = #ARGV[3], redis.call('HGETALL', KEYS[2])
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 1) == 'b' then
      bytes = bytes + tonumber(all[i + 1])
    end
  end
  if bytes > tonumber(ARGV[4]) then
    redis.call('HSET', KEYS[1], 's', 'unanswered')
    return 'too_much'
  end
  redis.call('HINCRBY', KEYS[2], 'b' .. row[3], #ARGV[3])
  redis.call('HSET', KEYS[1], 's', 'answered', 'a', ARGV[3])
  return 'kept'
end
redis.call('HSET', KEYS[1], 's', 'unanswered')
return 'kept'

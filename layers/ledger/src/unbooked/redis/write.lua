-- Stores calls without a receipt, and then removes calls that are too old or too many. KEYS: the calls, their indexes,
-- the number of calls per account. ARGV: the largest number of calls, the lowest number of a call that is recent
-- enough, how long a call is stored in ms, how many calls may be removed, and then the number and the JSON of each
-- call.
local calls, index, counts = KEYS[1], KEYS[2], KEYS[3]
local function members(number, call)
  local all = {'t:' .. number, 'a:' .. (call.account or '') .. ':' .. number}
  if call.key then
    all[#all + 1] = 'k:' .. call.key .. ':' .. number
  end
  if call.code then
    all[#all + 1] = 'c:' .. call.code .. ':' .. number
  end
  return all
end
local function oldest(from, before, most)
  return redis.call('ZRANGE', index, '[' .. from, '(' .. before, 'BYLEX', 'LIMIT', 0, most)
end
local function count(account, more)
  local now = tonumber(redis.call('ZSCORE', counts, account) or 0) + more
  if now > 0 then
    redis.call('ZADD', counts, now, account)
  else
    redis.call('ZREM', counts, account)
  end
end
local function remove(member)
  -- A number has 36 characters.
  local number = string.sub(member, -36)
  local json = redis.call('HGET', calls, number)
  if not json then
    redis.call('ZREM', index, member)
    return
  end
  local call = cjson.decode(json)
  redis.call('HDEL', calls, number)
  redis.call('ZREM', index, unpack(members(number, call)))
  count(call.account or '', -1)
end
for at = 5, #ARGV, 2 do
  local number, json = ARGV[at], ARGV[at + 1]
  if redis.call('HSETNX', calls, number, json) == 1 then
    local call = cjson.decode(json)
    for _, member in ipairs(members(number, call)) do
      redis.call('ZADD', index, 0, member)
    end
    count(call.account or '', 1)
  end
end
local left = tonumber(ARGV[4])
for _, member in ipairs(oldest('t:', 't:' .. ARGV[2], left)) do
  remove(member)
  left = left - 1
end
local over = redis.call('HLEN', calls) - tonumber(ARGV[1])
for _ = 1, math.min(over, left) do
  local largest = redis.call('ZRANGE', counts, 0, 0, 'REV')[1] or ''
  local member = oldest('a:' .. largest .. ':', 'a:' .. largest .. ';', 1)[1]
  if not member then
    redis.call('ZREM', counts, largest)
    break
  end
  remove(member)
end
for _, key in ipairs(KEYS) do
  redis.call('PEXPIRE', key, ARGV[3])
end
return 0

-- Put in front of every script of an account. KEYS[1] is always the account's hash; scripts that end
-- holds get KEYS[2] = holds by due time, KEYS[3] = expired holds, KEYS[4] = when those expired.
-- The state machine is book.rs: change both or neither.

local MAX = 9007199254740991
local TOMBSTONE_MS = 600000
local EXPIRED_MS = 7 * 24 * 3600000
local EXPIRED_PRUNED_MAX = 1000

-- `..` and tostring() write numbers from 10^14 on as 1e+14.
local function text(n)
  return string.format('%.0f', n)
end

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Amounts among the arguments. A script that finds a bad one has written nothing yet.
local function signed_amount(argument)
  local n = tonumber(argument)
  if not n or n ~= math.floor(n) or n < -MAX or n > MAX then
    error('not an amount within 2^53: ' .. tostring(argument))
  end
  return n
end

local function amount(argument)
  local n = signed_amount(argument)
  if n < 0 then
    error('a negative amount: ' .. argument)
  end
  return n
end

local function stored(field)
  return tonumber(field or '0')
end

local function plus(a, b)
  return math.min(a + b, MAX)
end

local function minus(a, b)
  return math.max(a - b, 0)
end

-- What a key can still hold. `ceiling` is nil where there is none.
local function free(balance, held, ceiling, used, key_held)
  local account = minus(balance, held)
  if ceiling then
    return math.min(account, minus(ceiling, plus(used, key_held)))
  end
  return account
end

-- The refusal that does not depend on an amount, or nil.
local function refusal(enabled, suspended, balance, ceiling, used)
  if not enabled then
    return 'unknown'
  elseif enabled ~= '1' then
    return 'disabled'
  elseif suspended == '1' then
    return 'suspended'
  elseif balance <= 0 then
    return 'account_empty'
  elseif ceiling and used >= ceiling then
    return 'ceiling_used_up'
  end
  return nil
end

-- Open holds are fields `o:<number>` of the account, "<held>:<key>:<want>:<least>".
local function parse_hold(value)
  local held, key, want, least = string.match(value, '^(%d+):([^:]+):(%d+):(%d+)$')
  return tonumber(held), key, tonumber(want), tonumber(least)
end

-- Takes an open hold off the books; what it held is given back to the account and its key.
-- The removals come first: they are allowed when the server is out of memory, and what follows a
-- script's first write is allowed too (where flags are not known, before 7.0).
local function close(number, value)
  local held, key = parse_hold(value)
  redis.call('ZREM', KEYS[2], number)
  redis.call('HDEL', KEYS[1], 'o:' .. number)
  local row = redis.call('HMGET', KEYS[1], 'h', key .. '.h')
  redis.call('HSET', KEYS[1],
    'h', text(minus(stored(row[1]), held)),
    key .. '.h', text(minus(stored(row[2]), held)))
  return held, key
end

-- Ends up to `most` holds that are past their time.
local function expire(most, now)
  local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', text(now), 'LIMIT', 0, most)
  local count = 0
  for _, number in ipairs(due) do
    local value = redis.call('HGET', KEYS[1], 'o:' .. number)
    if value then
      local held, key = close(number, value)
      redis.call('HSET', KEYS[3], number, key .. ':' .. text(held))
      redis.call('ZADD', KEYS[4], text(now), number)
      count = count + 1
    else
      redis.call('ZREM', KEYS[2], number)
    end
  end
  if count > 0 then
    local old = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', '(' .. text(now - EXPIRED_MS),
      'LIMIT', 0, EXPIRED_PRUNED_MAX)
    if #old > 0 then
      redis.call('HDEL', KEYS[3], unpack(old))
      redis.call('ZREM', KEYS[4], unpack(old))
    end
  end
  return count
end

local function forget_expired(number)
  redis.call('HDEL', KEYS[3], number)
  redis.call('ZREM', KEYS[4], number)
end

-- The first result of an ended hold answers repeats.
local function bury(tombstone, booked, charged, loss)
  redis.call('SET', tombstone, booked .. ':' .. text(charged) .. ':' .. text(loss), 'PX', TOMBSTONE_MS)
end

-- Functions that end holds. KEYS[2] = holds by expiry time, KEYS[3] = expired holds, KEYS[4] = when these holds
-- expired.

local TOMBSTONE_MS = 600000

-- An open hold is a field `o:<number>` of the account with the value "<held>:<key>:<want>:<least>". If the amount of
-- the hold was changed, ":<sequence number of the last change>" follows.
local function parse_hold(value)
  local held, key, want, least, adjusted = string.match(value, '^(%d+):([^:]+):(%d+):(%d+):?(%d*)$')
  return tonumber(held), key, tonumber(want), tonumber(least), tonumber(adjusted) or 0
end

-- Changes the number of a key's open calls, if this number is limited.
local function count_call(key, by)
  local calls = key .. '.n'
  call('HSET', KEYS[1], calls, text(math.max(stored(call('HGET', KEYS[1], calls)) + by, 0)))
end

-- Removes an open hold from the books; its amount is free again on the account and on its key. The removals come first:
-- a server before 7.0 does not support script flags, and if it is out of memory, it lets a script write only if the
-- first write is a removal.
local function close(number, value)
  local held, key = parse_hold(value)
  call('ZREM', KEYS[2], number)
  call('HDEL', KEYS[1], 'o:' .. number)
  local row = call('HMGET', KEYS[1], 'h', key .. '.h', key .. '.s')
  call('HSET', KEYS[1],
    'h', text(minus(stored(row[1]), held)),
    key .. '.h', text(minus(stored(row[2]), held)))
  local _, group, calls = state_of(row[3])
  if group then
    local held_in_group = 'g:' .. group .. '.h'
    call('HSET', KEYS[1], held_in_group, text(minus(stored(call('HGET', KEYS[1], held_in_group)), held)))
  end
  if calls then
    count_call(key, -1)
  end
  return held, key
end

local function forget_expired(number)
  call('HDEL', KEYS[3], number)
  call('ZREM', KEYS[4], number)
end

-- Writes the tombstone of an ended hold. Until it expires, repeated commands get the stored result. Amounts are passed
-- as text.
local function bury(tombstone, booked, charged, loss, ms)
  call('SET', tombstone, booked .. ':' .. charged .. ':' .. loss, 'PX', ms or TOMBSTONE_MS)
end

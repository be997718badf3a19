-- How holds end. KEYS[2] = holds by due time, KEYS[3] = expired holds, KEYS[4] = when those expired.

local TOMBSTONE_MS = 600000

-- Open holds are fields `o:<number>` of the account, "<held>:<key>:<want>:<least>".
local function parse_hold(value)
  local held, key, want, least = string.match(value, '^(%d+):([^:]+):(%d+):(%d+)$')
  return tonumber(held), key, tonumber(want), tonumber(least)
end

-- Counts the open holds of a key, where their number is limited.
local function count_call(key, by)
  local calls = key .. '.n'
  call('HSET', KEYS[1], calls, text(math.max(stored(call('HGET', KEYS[1], calls)) + by, 0)))
end

-- Takes an open hold off the books; what it held is given back to the account and its key.
-- The removals come first: they are allowed when the server is out of memory, and what follows a
-- script's first write is allowed too (where flags are not known, before 7.0).
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

-- The first result of an ended hold answers repeats, for so long. Its amounts come as text.
local function bury(tombstone, booked, charged, loss, ms)
  call('SET', tombstone, booked .. ':' .. charged .. ':' .. loss, 'PX', ms or TOMBSTONE_MS)
end

-- Ends expired holds.

local EXPIRED_MS = 7 * 24 * 3600000
local EXPIRED_PRUNED_MAX = 1000

-- Ends at most `most` expired holds.
local function expire(most, now)
  local due = call('ZRANGEBYSCORE', KEYS[2], '-inf', text(now), 'LIMIT', 0, most)
  local count = 0
  for _, number in ipairs(due) do
    local value = call('HGET', KEYS[1], 'o:' .. number)
    if value then
      local held, key = close(number, value)
      call('HSET', KEYS[3], number, key .. ':' .. text(held))
      call('ZADD', KEYS[4], text(now), number)
      count = count + 1
    else
      call('ZREM', KEYS[2], number)
    end
  end
  if count > 0 then
    local old = call('ZRANGEBYSCORE', KEYS[4], '-inf', '(' .. text(now - EXPIRED_MS),
      'LIMIT', 0, EXPIRED_PRUNED_MAX)
    if #old > 0 then
      call('HDEL', KEYS[3], unpack(old))
      call('ZREM', KEYS[4], unpack(old))
    end
  end
  return count
end

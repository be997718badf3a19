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

local call, floor = redis.call, math.floor

local function now_ms()
  local time = call('TIME')
  return time[1] * 1000 + floor(time[2] / 1000)
end

-- Amounts among the arguments. A script that finds a bad one has written nothing yet.
local function signed_amount(argument)
  local n = tonumber(argument)
  if not n or n ~= floor(n) or n < -MAX or n > MAX then
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

-- Days and months of UTC, counted from the first of 1970: calendar.rs has the same.
local function day_of(ms)
  return floor(ms / 86400000)
end

local function month_of(ms)
  local days = day_of(ms) + 719468
  local era = floor(days / 146097)
  local day = days - era * 146097
  local year = floor(
    (day - floor(day / 1460) + floor(day / 36524) - floor(day / 146096)) / 365)
  local day_of_year = day - (365 * year + floor(year / 4) - floor(year / 100))
  local month_from_march = floor((5 * day_of_year + 2) / 153)
  return (era * 400 + year - 1970) * 12 + month_from_march + 2
end

-- The fields of a key's money, in the order in which `money_of` takes them.
local function money_fields(key)
  return key .. '.s', key .. '.u', key .. '.h', key .. '.l', key .. '.lm', key .. '.ld', key .. '.m', key .. '.d'
end

-- The current month or day of a key that has used so much: its index, what had been used before it, and
-- whether the field has yet to be written. The field has the one of the key's last charge,
-- "<index>:<used before it>". A clock that went back over midnight does not begin it anew.
local function period_of(field, now, used)
  if field then
    local index, before = string.match(field, '^(%d+):(%d+)$')
    index = tonumber(index)
    if index == now or index == now + 1 then
      return index, tonumber(before), false
    end
  end
  return now, used, true
end

-- The money of a key: `row` has its fields from `at` on. Its bounds are its ceilings with what has been
-- spent under each; the one that begins anew last comes first. Most keys have none.
local function money_of(row, at, now)
  local used, bounds = stored(row[at + 1]), {}
  local total, monthly, daily = row[at + 3], row[at + 4], row[at + 5]
  if total then
    bounds[1] = {ceiling = 'total', limit = tonumber(total), spent = used, index = 0}
  end
  if monthly then
    local month, before = period_of(row[at + 6], month_of(now), used)
    bounds[#bounds + 1] = {
      ceiling = 'month', limit = tonumber(monthly), spent = minus(used, before), index = month}
  end
  if daily then
    local day, before = period_of(row[at + 7], day_of(now), used)
    bounds[#bounds + 1] = {
      ceiling = 'day', limit = tonumber(daily), spent = minus(used, before), index = day}
  end
  return {enabled = row[at], used = used, held = stored(row[at + 2]), bounds = bounds}
end

-- What a key can hold beside its open holds and `beside`, where its account has so much free; and the
-- bound that leaves no more, or nil.
local function room(account, money, beside)
  local held, least, by = plus(money.held, beside), account, nil
  for i = 1, #money.bounds do
    local bound = money.bounds[i]
    local left = minus(bound.limit, plus(bound.spent, held))
    if left < least then
      least, by = left, bound
    end
  end
  return least, by
end

-- The refusal that does not depend on an amount, or nil; then the bound that was met, or nil.
local function refusal(money, suspended, balance)
  if not money.enabled then
    return 'unknown'
  elseif money.enabled ~= '1' then
    return 'disabled'
  elseif suspended == '1' then
    return 'suspended'
  elseif balance <= 0 then
    return 'account_empty'
  end
  for _, bound in ipairs(money.bounds) do
    if bound.spent >= bound.limit then
      return 'used_up', bound
    end
  end
  return nil
end

-- How answers tell of a bound: which ceiling, and of which month or day.
local function told(bound)
  if bound then
    return bound.ceiling, bound.index
  end
  return '', 0
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
  call('ZREM', KEYS[2], number)
  call('HDEL', KEYS[1], 'o:' .. number)
  local row = call('HMGET', KEYS[1], 'h', key .. '.h')
  call('HSET', KEYS[1],
    'h', text(minus(stored(row[1]), held)),
    key .. '.h', text(minus(stored(row[2]), held)))
  return held, key
end

-- Ends up to `most` holds that are past their time.
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

local function forget_expired(number)
  call('HDEL', KEYS[3], number)
  call('ZREM', KEYS[4], number)
end

-- The first result of an ended hold answers repeats. Its amounts come as text.
local function bury(tombstone, booked, charged, loss)
  call('SET', tombstone, booked .. ':' .. charged .. ':' .. loss, 'PX', TOMBSTONE_MS)
end

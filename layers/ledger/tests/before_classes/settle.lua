#!lua flags=allow-oom
-- The usual case of settle.lua, which comes after it and knows all of them: the hold stands, is what the
-- caller says, pays for the whole call, and is not the key's first one of the day, thus not of the month:
-- `.m` is brought up to date wherever `.d` is. Amounts are written as they came. Of all milliseconds one in
-- 32 is left to settle.lua, which drops old lines of the journal.
do
  local call, number, key = redis.call, ARGV[1], ARGV[2]
  local cost, held, retention = tonumber(ARGV[3]), tonumber(ARGV[5]), tonumber(ARGV[7])
  local open = 'o:' .. number
  local row = call('HMGET', KEYS[1], 'b', 'h', open,
    key .. '.s', key .. '.u', key .. '.h', key .. '.m', key .. '.d')
  local balance, all_held, used, key_held = row[1], row[2], row[5], row[6]
  if balance and all_held and row[3] and row[4] and used and key_held and cost and held and retention then
    balance, all_held, used, key_held = tonumber(balance), tonumber(all_held), tonumber(used), tonumber(key_held)
    local time = call('TIME')
    local at = time[1] .. string.sub('00000' .. time[2], -6, -4)
    local now = tonumber(at)
    local last_day = row[7] and row[8] and string.match(row[8], '^(%d+):%d+$')
    if last_day and tonumber(last_day) == (now - now % 86400000) / 86400000 and now % 32 ~= 0
      and string.find(row[3], ARGV[5] .. ':' .. key .. ':', 1, true) == 1
      and 0 <= cost and cost <= held and cost <= balance and held <= all_held and held <= key_held
      and held <= 9007199254740991 and used + cost <= 9007199254740991
      and 0 <= retention and retention <= now
      and cost % 1 == 0 and held % 1 == 0 and retention % 1 == 0
      and call('EXISTS', KEYS[5], KEYS[7]) == 0 then
      -- The removals come first, as in `close`. `call` writes whole numbers as digits, to 10^17.
      call('ZREM', KEYS[2], number)
      call('HDEL', KEYS[1], open)
      call('HSET', KEYS[1], 'b', balance - cost, 'h', all_held - held,
        key .. '.h', key_held - held, key .. '.u', used + cost)
      call('SET', KEYS[5], 'held:' .. ARGV[3] .. ':0', 'PX', '600000')
      local added = call('XADD', KEYS[6], '*',
        'kind', 'call', 'at', at, 'number', number, 'key', key, 'held', ARGV[5], 'cost', ARGV[3],
        'charged', ARGV[3], 'loss', '0', 'booked', 'held', 'item', ARGV[6])
      call('SET', KEYS[7], added, 'PX', ARGV[7])
      return cost
    end
  end
end
-- Days and months of UTC, counted from the first of 1970: calendar.rs has the same.

local function day_of(ms)
  return (ms - ms % 86400000) / 86400000
end

local function month_of(ms)
  local days = day_of(ms) + 719468
  local day = days % 146097
  local era = (days - day) / 146097
  local year = math.floor(
    (day - math.floor(day / 1460) + math.floor(day / 36524) - math.floor(day / 146096)) / 365)
  local day_of_year = day - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month_from_march = math.floor((5 * day_of_year + 2) / 153)
  return (era * 400 + year - 1970) * 12 + month_from_march + 2
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
-- Amounts. Whole numbers within 2^53 are exact, here and as arguments of `call`, which writes them as digits.

local MAX = 9007199254740991
local call, floor = redis.call, math.floor

-- `..` and tostring() write numbers from 10^14 on as 1e+14.
local function text(n)
  return string.format('%.0f', n)
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
-- The server's time.

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
-- The money of a key.

-- The fields of a key's money, in the order in which `money_of` takes them.
local function money_fields(key)
  return key .. '.s', key .. '.u', key .. '.h', key .. '.l', key .. '.lm', key .. '.ld', key .. '.m', key .. '.d'
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
-- How holds end. KEYS[2] = holds by due time, KEYS[3] = expired holds, KEYS[4] = when those expired.

local TOMBSTONE_MS = 600000

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

local function forget_expired(number)
  call('HDEL', KEYS[3], number)
  call('ZREM', KEYS[4], number)
end

-- The first result of an ended hold answers repeats. Its amounts come as text.
local function bury(tombstone, booked, charged, loss)
  call('SET', tombstone, booked .. ':' .. charged .. ':' .. loss, 'PX', TOMBSTONE_MS)
end
-- with: settle_usual, calendar, amounts, clock, money, holds
-- Charges a call and ends its hold, once: I3, I5.
-- KEYS[5] = the number's tombstone, KEYS[6] = the journal, KEYS[7] = the receipt's place in it.
-- ARGV: number, key, cost, fresh (0 or 1), what the caller held, the receipt's item, retention in ms.
-- A number that was never held, or so long ago that it may have been settled, moves nothing and leaves
-- one entry to look into.
-- Answers what was charged, in the usual case; or how it was booked, charged, loss, whether that is the first
-- result repeated (0 or 1).
local number, key, cost, retention = ARGV[1], ARGV[2], amount(ARGV[3]), amount(ARGV[7])
local caller_held = text(amount(ARGV[5]))

local row = call('HMGET', KEYS[1], 'b', 'h', 'loss', 'o:' .. number, money_fields(key))
if not row[1] then
  return {'no_account', 0, 0, 0}
end
local known = call('MGET', KEYS[5], KEYS[7])
local first, place = known[1], known[2]
if first then
  local booked, charged, loss = string.match(first, '^([^:]+):(%d+):(%d+)$')
  return {booked, tonumber(charged), tonumber(loss), 1}
end

local now = now_ms()
local function journal(booked, charged, loss)
  local added = call('XADD', KEYS[6], 'MINID', '~', text(math.max(now - retention, 0)), '*',
    'kind', 'call', 'at', text(now), 'number', number, 'key', key, 'held', caller_held, 'cost', text(cost),
    'charged', charged, 'loss', loss, 'booked', booked, 'item', ARGV[6])
  call('SET', KEYS[7], added, 'PX', text(retention))
end

-- A receipt outlives its tombstone and tells what was done. A hold that came back meanwhile, by a
-- RESERVE that was sent twice, ends without a second charge.
if place then
  local entry = call('XRANGE', KEYS[6], place, place)[1]
  local receipt = {}
  for i = 1, entry and #entry[2] or 0, 2 do
    receipt[entry[2][i]] = entry[2][i + 1]
  end
  if receipt.booked and receipt.booked ~= 'stale' then
    if row[4] then
      close(number, row[4])
    end
    forget_expired(number)
    return {receipt.booked, tonumber(receipt.charged), tonumber(receipt.loss), 1}
  end
end

local booked, held, holder = nil, 0, key
if row[4] then
  booked = 'held'
  held, holder = parse_hold(row[4])
else
  local expired = call('HGET', KEYS[3], number)
  if expired then
    booked, holder = 'late', string.match(expired, '^([^:]+):')
  elseif ARGV[4] == '1' and row[5] then
    booked = 'forced'
  end
end
-- A settlement on another key than its hold's is nobody's.
if not booked or holder ~= key then
  if not place then
    journal('stale', '0', '0')
  end
  return {'stale', 0, 0, 0}
end

local balance, all_held, money = stored(row[1]), stored(row[2]), money_of(row, 5, now)
if booked == 'held' then
  all_held, money.held = minus(all_held, held), minus(money.held, held)
end
-- The hold was promised: it pays even where a ceiling has been lowered since.
local beside = 0
if money.enabled then
  beside = room(minus(balance, plus(all_held, held)), money, held)
end
local charged = math.min(cost, plus(held, beside))
local loss = minus(cost, charged)

-- As `close` does, and the charge in the same write.
if booked == 'held' then
  call('ZREM', KEYS[2], number)
  call('HDEL', KEYS[1], 'o:' .. number)
elseif booked == 'late' then
  forget_expired(number)
end
local changed = {'HSET', KEYS[1], 'b', text(minus(balance, charged))}
local count = 4
local function change(field, value)
  changed[count + 1], changed[count + 2] = field, value
  count = count + 2
end
if booked == 'held' then
  change('h', text(all_held))
  change(key .. '.h', text(money.held))
end
if money.enabled then
  change(key .. '.u', text(plus(money.used, charged)))
  local month, before_month, month_is_new = period_of(row[11], month_of(now), money.used)
  if month_is_new then
    change(key .. '.m', text(month) .. ':' .. text(before_month))
  end
  local day, before_day, day_is_new = period_of(row[12], day_of(now), money.used)
  if day_is_new then
    change(key .. '.d', text(day) .. ':' .. text(before_day))
  end
end
if loss > 0 then
  change('loss', text(plus(stored(row[3]), loss)))
end
call(unpack(changed))
local charged_text, loss_text = text(charged), text(loss)
bury(KEYS[5], booked, charged_text, loss_text)
journal(booked, charged_text, loss_text)
return {booked, charged, loss, 0}

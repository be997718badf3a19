#!lua flags=allow-oom
-- with: amounts, calendar, clock, state, money, holds, journal, events, turns
-- Charges a call and ends its hold, once (I3, I5).
--
-- KEYS[5] = the tombstone of the number, KEYS[6] = the journal, KEYS[7] = the position of the receipt in the journal,
-- KEYS[8] = the account's events. For calls that lease turns have charged: KEYS[9] = the hash with individually charged
-- calls, KEYS[10] = the hash with batches.
-- ARGV: number, key, cost, fresh (0 or 1), the amount that the caller held, the item of the receipt, retention in ms,
-- the part of the number that differs within KEYS[9] and KEYS[10].
-- If the number was never held, or was held so long before that it may have been settled, no money moves, and one
-- journal line is written for operators to investigate.
-- Returns how the call was booked, charge, loss, whether this repeats the first result (0 or 1), and, if the charge
-- emits events, how many.
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

-- A lease turn may have charged the call, and this process may have lost the number of that lease. A call with its own
-- hold was not charged by a lease turn, because a lease pays only for calls without their own hold.
local turn = not row[4] and turn_with(ARGV[8], turns_in(KEYS[10])) or call('HGET', KEYS[9], ARGV[8])
local charged_before = turn and calls_at(KEYS[6], turn)[number]
if charged_before and charged_before[1] ~= 'stale' then
  if row[4] then
    close(number, row[4])
  end
  return charged_before
end

local now = now_ms()
local function journal(booked, charged, loss, group)
  local line = {'kind', 'call', 'at', text(now), 'number', number, 'key', key, 'held', caller_held, 'cost', text(cost),
    'charged', charged, 'loss', loss, 'booked', booked, 'item', ARGV[6]}
  if group then
    line[#line + 1], line[#line + 2] = 'group', group.id
  end
  -- Old lines are dropped by one of 32 settlements, chosen by the millisecond.
  local added = add_line(KEYS[6], now, retention, now % 32 == 0, unpack(line))
  call('SET', KEYS[7], added, 'PX', text(retention))
end

-- A receipt contains the result too, and exists for longer than the tombstone. A RESERVE that was sent twice may have
-- made a hold again; such a hold ends without a second charge.
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
-- A settlement with another key than the key of the hold moves no money.
if not booked or holder ~= key then
  if not place then
    journal('stale', '0', '0')
  end
  return {'stale', 0, 0, 0}
end

local balance, all_held, money = stored(row[1]), stored(row[2]), money_of(row, 5, now)
local group = group_of(money, now)
if booked == 'held' then
  all_held, money.held = minus(all_held, held), minus(money.held, held)
  if group then
    group.held = minus(group.held, held)
  end
end
-- A ceiling may have been lowered since the hold was granted. The held amount is charged nevertheless.
local beside = 0
if money.enabled then
  beside = room_in(minus(balance, plus(all_held, held)), money, group, held)
end
local charged = math.min(cost, plus(held, beside))
local loss = minus(cost, charged)

-- Does what `close` does, but includes the charge in the same write.
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
  if group then
    change('g:' .. group.id .. '.h', text(group.held))
  end
  if money.calls then
    count_call(key, -1)
  end
end
if group then
  charge_group(group, charged, now, change)
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
journal(booked, charged_text, loss_text, group)
local levels = call('HMGET', KEYS[1], 'lo', key .. '.lo')
levels[3] = group and group.levels
local emitted = emit_charge(KEYS[8], now, retention, levels, key, money.enabled and bounds_of(money, group) or {}, balance, charged,
  number)
if emitted > 0 then
  return {booked, charged, loss, 0, emitted}
end
return {booked, charged, loss, 0}

#!lua flags=allow-oom
-- with: amounts, calendar, clock, state, money, holds, journal, events, turns
-- A lease turn: one request about a lease. It charges settlements of calls that had a hold against the lease, and opens
-- the lease, enlarges it, reduces it or gives it back. To all other scripts a lease is a hold of its key, so all
-- guarantees for holds apply to leases.
-- A turn that requests money is sent as a script without the flag allow-oom. If the server is out of memory, the turn
-- is sent again without the request.
-- All calls that a turn charges are in one journal entry, with one line per call. A batch consists of calls whose
-- numbers were generated within the same 4 s, so that the numbers begin alike. If the lease has paid each call of a
-- batch in full, the position of the entry is one field of a hash for such numbers, so nothing is written per call. For
-- any other call, the position is stored under the call's number.
-- The owner of a lease reports each settlement in one turn, and a repeated turn is recognized by its name (its word).
-- So settlements in the owner's turns are not looked up again. Settlements that other processes report are looked up by
-- their numbers. The names of a call's tombstone and of its receipt's position differ in one letter.
--
-- KEYS[5] = the journal, KEYS[6] = the account's leases, KEYS[7] = the account's events, KEYS[8] = the tombstone of the
-- lease. Then one hash with batches for each batch. Then one hash with individually charged calls for each batch. Then,
-- for each settlement, the position of its receipt, which exists if the call was settled without a lease.
--
-- ARGV:
--  1 the lease's number
--  2 the lease's key
--  3 the step: 'open', 'go on', 'close', or 'tell', which only reports settlements
--  4 the name (word) of the previous turn
--  5 the name (word) of this turn
--  6 the amount that the lease gives back
--  7 the amount requested for the lease
--  8 the amount by which the holds of in-flight calls are to grow; granted even if money is short for the lease
--  9 the lease is enlarged only if at least this much money is free outside the leases
-- 10 the time to live of the lease's hold, in ms
-- 11 how long holds may be granted from the lease, in ms; 0: none
-- 12 the name of the owner
-- 13 the retention of the journal entry, in ms
-- 14 the sum of the costs of the settlements, or nothing if the lease does not pay each cost in full
-- 15 the lines of the journal entry, as they are if each call is charged its full cost:
--    "<number> <held> <cost> <charged> <loss> <booked> <item>"
-- 16 for each settlement, the amount that the lease pays and whether it is fresh: "<cover>:<0 or 1>"
-- 17 the shared parts of items (see the file lines.rs)
-- 18 the number of batches
-- then for each batch: the number of settlements, the span of their numbers, and the part of each number that differs
-- within the batch, in the order of the lines. All settlements are of different calls.
--
-- Returns:
--  1 the result
--  2 the money in the lease
--  3 the money that is free outside the lease
--  4 whether money is short: 0, 1, or 2 because of a recall
--  5 for each settlement: how it was booked, charged, loss, and whether that is the first result repeated (0 or 1);
--    nothing if each call was charged its full cost
--  6 the number of events that the charges emitted
--  7 if the result is 'fenced': the name (word) of the lease's last turn
--  8 if the holds of in-flight calls were to grow and did not grow in full: the refusal
local lease, key, step, before, this = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local give, more, raise, short_of = amount(ARGV[6]), amount(ARGV[7]), amount(ARGV[8]), amount(ARGV[9])
local ttl, grants, owner, retention = amount(ARGV[10]), amount(ARGV[11]), ARGV[12], amount(ARGV[13])
local total, lines, covers, shared = ARGV[14] ~= '' and amount(ARGV[14]), ARGV[15], ARGV[16], ARGV[17]
-- A batch with fewer calls than this is not stored as a batch: its numbers are stored individually, because to look a
-- number up in a stored batch, all turns of the same 4 s must be read.
local TOGETHER = 8
-- If a hash contains at most this many individually stored numbers, they are all read and compared with the numbers of
-- the batch. If it contains more, the numbers of the batch are looked up.
local APART_FEW = 128
local batches, count = {}, 0
do
  local HASHES, BATCHES, many = 8, 18, amount(ARGV[18])
  for i = 1, many do
    local at = BATCHES + 3 * i - 2
    batches[i] = {turns = KEYS[HASHES + i], apart = KEYS[HASHES + many + i], behind = count,
      count = amount(ARGV[at]), span = ARGV[at + 1], numbers = ARGV[at + 2]}
    count = count + batches[i].count
  end
end
local ALONE = #KEYS - count

local row = call('HMGET', KEYS[1], 'b', 'h', 's', 'loss', 'rc', 'o:' .. lease, 'lo', key .. '.lo', money_fields(key))
if not row[1] then
  local answers = {}
  for i = 1, count do
    answers[i] = {'no_account', 0, 0, 0}
  end
  return {'gone', 0, 0, 1, answers, 0, ''}
end
local now = now_ms()
local balance, all_held, money = stored(row[1]), stored(row[2]), money_of(row, 9, now)
local group = group_of(money, now)
local bounds = bounds_of(money, group)
local levels = {row[7], row[8], group and group.levels}
local refused, met = refusal(money, group, row[3], balance)

-- The money of the lease, and how settlements are booked here: from the lease, late, or forced.
local left, holder, booked_here = 0, key, nil
if row[6] then
  left, holder = parse_hold(row[6])
  booked_here = 'held'
else
  local expired = call('HGET', KEYS[3], lease)
  if expired then
    booked_here, holder = 'late', string.match(expired, '^([^:]+):')
  end
end
local word, again, since, last, granted_until = 'ok', false, text(now), nil, 0
-- Expired leases, whose owners have died.
local dead = {}
local record_of = step ~= 'tell' and call('HGET', KEYS[6], lease)
if step ~= 'tell' then
  if record_of then
    last, granted_until, since = string.match(record_of, '^(%S+) (%d+) (%d+) ')
    granted_until = amount(granted_until)
  end
  again = last == this
  if holder ~= key then
    word = 'fenced'
  elseif again then
    word = row[6] and 'ok' or 'gone'
  elseif step == 'open' then
    if record_of or row[6] then
      word = 'fenced'
    elseif booked_here or call('EXISTS', KEYS[8]) == 1 then
      -- The lease was opened by an earlier copy of this turn, and has expired or was given back since.
      word = 'gone'
    end
    for _, other in ipairs(call('HKEYS', KEYS[6])) do
      if call('HEXISTS', KEYS[1], 'o:' .. other) == 0 then
        dead[#dead + 1] = other
      end
    end
  elseif not row[6] then
    word = 'gone'
  elseif last ~= before then
    word = 'fenced'
  end
end

-- The owner continues its lease, so no other process has reported these settlements, unless they are stored under their
-- numbers.
local goes_on = word == 'ok' and not again and (step == 'go on' or step == 'close')
-- Returns whether any of the settlements may be stored under its number. In a small hash, the server would search for
-- each number from the beginning, so a small hash is read once instead.
local function may_stand_apart()
  if call('EXISTS', unpack(KEYS, ALONE + 1)) > 0 then
    return true
  end
  for _, batch in ipairs(batches) do
    local many = call('HLEN', batch.apart)
    if many > APART_FEW then
      return true
    end
    for _, number in ipairs(many > 0 and call('HKEYS', batch.apart) or {}) do
      if string.find(batch.numbers, number, 1, true) then
        return true
      end
    end
  end
  return false
end
-- The positions of settlements that were reported before, and the tombstones of calls that another process has finally
-- released (release.lua) without the number of their lease.
local places, alone, tombstones, known = {}, {}, {}, false
if count > 0 and (not goes_on or may_stand_apart()) then
  alone = call('MGET', unpack(KEYS, ALONE + 1))
  for _, batch in ipairs(batches) do
    local numbers, turns = numbers_in(batch.numbers), not goes_on and turns_in(batch.turns)
    local apart = call('HMGET', batch.apart, unpack(numbers))
    for i, number in ipairs(numbers) do
      local at = batch.behind + i
      places[at] = turns and turn_with(number, turns) or apart[i] or alone[at]
      known = known or places[at]
    end
  end
  if not goes_on then
    for i = 1, count do
      tombstones[i] = (string.gsub(KEYS[ALONE + i], '}:r:', '}:d:', 1))
    end
    tombstones = call('MGET', unpack(tombstones, 1, count))
    for i = 1, count do
      known = known or tombstones[i]
    end
  end
end

local used, lost, moved, emitted = money.used, stored(row[4]), false, 0
local month, before_month, month_is_new = period_of(row[15], month_of(now), used)
local day, before_day, day_is_new = period_of(row[16], day_of(now), used)
-- The lines by settlement, if not all settlements use their prepared lines.
local lined, answers = nil, {}
-- The calls in journal entries of earlier turns.
local entries = {}
local function charged_before(place, number)
  entries[place] = entries[place] or calls_at(KEYS[5], place)
  return entries[place][number]
end
local function charge_one(i, call_end)
  local first = places[i] and charged_before(places[i], call_end.number)
  -- A call that was booked as stale in a turn may have been settled without a lease, and charged, since then.
  if alone[i] and (not first or first[1] == 'stale') then
    first = charged_before(alone[i], call_end.number)
  end
  if first and first[1] ~= 'stale' then
    return first
  end
  if tombstones[i] and string.find(tombstones[i], 'released:', 1, true) == 1 then
    return {'released', 0, 0, 1}
  end
  local booked = booked_here
  if not booked and call_end.fresh == '1' and money.enabled then
    booked = 'forced'
  end
  -- A settlement with another key than the key of the lease moves no money.
  if not booked or holder ~= key then
    if not places[i] then
      lined[i] = call_end.number .. call_end.held_and_cost .. '0 0 stale ' .. call_end.item
    end
    return {'stale', 0, 0, 0}
  end
  local cost = call_end.cost
  local cover = booked == 'held' and math.min(call_end.cover, cost, left) or 0
  left, all_held, money.held = left - cover, minus(all_held, cover), minus(money.held, cover)
  if group then
    group.held = minus(group.held, cover)
  end
  local beside = 0
  if money.enabled then
    beside = room_in(minus(balance, plus(all_held, cover)), money, group, cover)
  end
  local charged = math.min(cost, plus(cover, beside))
  local loss = minus(cost, charged)
  emitted = emitted + emit_charge(KEYS[7], now, retention, levels, key, money.enabled and bounds or {},
    balance, charged, call_end.number)
  balance, used, lost, moved = minus(balance, charged), plus(used, charged), plus(lost, loss), true
  for b = 1, #bounds do
    bounds[b].spent = plus(bounds[b].spent, charged)
  end
  lined[i] = call_end.number .. call_end.held_and_cost .. text(charged) .. ' ' .. text(loss) .. ' ' .. booked .. ' ' ..
    call_end.item
  return {booked, charged, loss, 0}
end
local function charge_each()
  lined = {}
  local cover_of = string.gmatch(covers, '(%d+):(%d)')
  local i = 0
  for line in string.gmatch(lines, '[^\n]+') do
    i = i + 1
    local number, both, cost, item = string.match(line, '^(%S+)( %d+ (%d+) )%d+ %d+ %S+ (.*)$')
    local cover, fresh = cover_of()
    answers[i] = charge_one(i, {number = number, held_and_cost = both, cost = amount(cost), item = item,
      cover = amount(cover), fresh = fresh})
  end
end
-- If the sum of the charges passes no alert level, no single charge passes one.
local function passes_no_level()
  if not row[7] and #bounds == 0 then
    return true
  end
  for i = 1, #bounds do
    local bound = bounds[i]
    local reached = floor(bound.limit / 100)
    local was, stays = minus(bound.limit, bound.spent), minus(bound.limit, plus(bound.spent, total))
    if passed(levels[bound.group and 3 or 2], was, stays) or (stays <= reached and reached < was) then
      return false
    end
  end
  return not passed(row[7], balance, minus(balance, total))
end
if count > 0 and total and not known and booked_here == 'held' and holder == key and money.enabled and total <= left
  and passes_no_level()
then
  left, all_held, money.held = left - total, minus(all_held, total), minus(money.held, total)
  if group then
    group.held = minus(group.held, total)
  end
  balance, used, moved = minus(balance, total), plus(used, total), true
  for i = 1, #bounds do
    bounds[i].spent = plus(bounds[i].spent, total)
  end
elseif count > 0 then
  charge_each()
end

-- If the key exceeds a ceiling that was lowered, the lease grants nothing more.
local over = false
for i = 1, #bounds do
  local bound = bounds[i]
  over = over or plus(bound.spent, bound.group and group.held or money.held) > bound.limit
end
-- The ledger does not count the calls of a lease. If the number of open calls is limited, each call needs its own hold.
local may = not refused and not over and not money.calls
local free, by = room_in(minus(balance, all_held), money, group, 0)
-- The reason why in-flight calls may not hold more, as a refusal of adjust.lua.
local why = {}
if raise > 0 and refused then
  why[1] = {refused, 0, 0, bound_words(met)}
end
local recalled = math.abs(now - stored(row[5])) < 1000
local short = not may or free < short_of or recalled
local resized, stays_closed = false, false
if again and word == 'ok' and not may then
  word = 'refused'
elseif word == 'ok' and step ~= 'tell' and not again then
  resized = true
  local change = 0
  if give > 0 or step == 'close' then
    change = -(step == 'close' and left or math.min(give, left))
  elseif more > 0 and not short then
    local leases = call('HLEN', KEYS[6]) - #dead + (record_of and 0 or 1)
    change = math.min(more, math.floor(free / (2 * leases)))
  end
  -- A refusal here would stop an in-flight call. So neither the share of other leases nor a limit of open calls reduces
  -- the amount. A lease that is being opened has no in-flight calls.
  local raised = 0
  if step == 'go on' and not refused then
    raised = math.min(raise, math.max(free - change, 0))
    change = change + raised
  end
  left, all_held, money.held = left + change, minus(all_held + change, 0), minus(money.held + change, 0)
  if group then
    group.held = minus(group.held + change, 0)
  end
  free = math.max(free - change, 0)
  if raised < raise and not refused then
    why[1] = {'does_not_fit', free, money.held, bound_words(by)}
  end
  if step == 'open' and left == 0 then
    -- The gateway that sent this turn drops its lease now, even if a late copy of this turn arrives.
    word, resized, stays_closed = refused and 'refused' or 'short', false, true
  elseif not may then
    word = 'refused'
  end
end

-- A server before Redis 7 that is out of memory lets a script write only if its first write is a removal, even if that
-- removes nothing.
if more == 0 and raise == 0 then
  call('ZREM', KEYS[2], '')
end
local closes = resized and step == 'close'
if closes then
  call('ZREM', KEYS[2], lease)
  call('HDEL', KEYS[1], 'o:' .. lease)
  call('HDEL', KEYS[6], lease)
  if money.calls then
    count_call(key, -1)
  end
end
if closes or stays_closed then
  bury(KEYS[8], 'released', '0', '0')
end
local entry = count > 0 and lines
if lined then
  local some = {}
  for i = 1, count do
    some[#some + 1] = lined[i]
  end
  entry = #some > 0 and table.concat(some, '\n')
end
if entry then
  local fields = {'kind', 'calls', 'at', text(now), 'key', key, 'shared', shared, 'calls', entry}
  if group then
    fields[11], fields[12] = 'group', group.id
  end
  local place = add_line(KEYS[5], now, retention, now % 32 == 0, unpack(fields))
  local written = {}
  for _, batch in ipairs(batches) do
    if goes_on and not lined and batch.count >= TOGETHER then
      written[batch.turns] = {batch.span .. ':' .. place, batch.numbers}
    else
      local fields = written[batch.apart] or {}
      for i, number in ipairs(numbers_in(batch.numbers)) do
        if not lined or lined[batch.behind + i] then
          fields[#fields + 1] = number
          fields[#fields + 1] = place
        end
      end
      written[batch.apart] = fields
    end
  end
  for hash, fields in pairs(written) do
    if #fields > 0 then
      call('HSET', hash, unpack(fields))
      call('PEXPIRE', hash, text(retention))
    end
  end
end
local changed = {}
local function change(field, value)
  changed[#changed + 1] = field
  changed[#changed + 1] = value
end
if resized or moved then
  change('h', text(all_held))
  change(key .. '.h', text(money.held))
  if group then
    change('g:' .. group.id .. '.h', text(group.held))
  end
end
if group and moved then
  charge_group(group, minus(used, money.used), now, change)
end
if moved then
  change('b', text(balance))
  change('loss', text(lost))
  if money.enabled then
    change(key .. '.u', text(used))
    if month_is_new then
      change(key .. '.m', text(month) .. ':' .. text(before_month))
    end
    if day_is_new then
      change(key .. '.d', text(day) .. ':' .. text(before_day))
    end
  end
end
if not closes and (resized or (row[6] and moved)) then
  change('o:' .. lease, text(left) .. ':' .. key .. ':0:0')
end
if #changed > 0 then
  call('HSET', KEYS[1], unpack(changed))
end
-- The time until which the owner may grant holds. An owner that may grant nothing more still grants as its previous
-- turn allows until it receives this answer, so the process that has forbidden further grants waits until that time. An
-- owner that requests no grants stopped granting before it sent this turn. A repeated turn that may grant extends the
-- time again.
local until_ms = 0
if grants > 0 then
  until_ms = may and now + grants or granted_until
end
if resized and not closes then
  call('ZADD', KEYS[2], text(now + ttl), lease)
end
if (resized and not closes) or (again and word == 'ok') then
  call('HSET', KEYS[6], lease, this .. ' ' .. text(until_ms) .. ' ' .. since .. ' ' .. owner)
end
-- This comes last, because it is a removal.
for _, other in ipairs(dead) do
  call('HDEL', KEYS[6], other)
end
return {word, left, free, recalled and 2 or short and 1 or 0, answers, emitted, word == 'fenced' and last or '', why}

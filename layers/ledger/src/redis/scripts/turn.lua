#!lua flags=allow-oom
-- with: amounts, calendar, clock, state, money, holds, telling, turns
-- A turn of a lease: ends of calls that it held money for are charged, and it is opened, made larger or smaller, given
-- back. To all other scripts a lease is a hold of its key: what they keep true of holds is true of leases.
-- A turn that asks for more is sent without the flag above, and anew without asking where the server is out of memory.
-- All that a turn charges is one entry of the journal: a line for each call. Where the calls of an entry are that its lease
-- paid whole is one field of a hash of numbers that begin alike, so that nothing is written for each call alone; where any
-- other is stands under its number.
-- A lease's owner tells each end in one turn, and turns are known by their words: what its own turns have told is not looked
-- for again. What anybody else has told is known by its number. Each end's tombstone stands beside its receipt's place.
-- KEYS[5] = the journal, KEYS[6] = the account's leases, KEYS[7] = what the account tells, KEYS[8] = the lease's tombstone;
-- then for each batch of ends whose numbers begin alike where turns stand that have told such numbers; then for each batch
-- where numbers stand by themselves; then for each end its receipt's place, where it was settled by itself.
-- ARGV: the lease's number, its key; what is done ('open', 'go on', 'close', or 'tell': the ends alone); the word of
-- the turn before this one, and this one's; how much is given back, how much more is asked for, with how little left
-- beside it nobody gets more; how long the hold lives, for how long more may be granted from it (0: nothing is), both in
-- ms; whose it is; retention in ms; of the ends, each with a number of its own: their costs together, or nothing where the
-- lease has not all of each; the lines of the entry as they are if each is charged its cost, "<number> <held> <cost>
-- <charged> <loss> <booked> <item>"; for each what the lease has and whether it is fresh, "<cover>:<0 or 1>"; what their items
-- share (see the file lines.rs); how many batches there are; for each how many ends, the span of their numbers, and of each
-- number what it does not share with the others, in the order of the lines.
-- Answers how it went, what the lease has now, what is free beside it, whether money is short (0 or 1; 2: somebody asks
-- for it); for each end how it was booked, charged, loss, whether that is the first result repeated (0 or 1), or nothing
-- where each was charged its cost; then how many events its charges told; to one that is fenced, the word of the lease's last
-- turn.
local lease, key, step, before, this = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local give, more, short_of = amount(ARGV[6]), amount(ARGV[7]), amount(ARGV[8])
local ttl, grants, owner, retention = amount(ARGV[9]), amount(ARGV[10]), ARGV[11], amount(ARGV[12])
local total, lines, covers, shared = ARGV[13] ~= '' and amount(ARGV[13]), ARGV[14], ARGV[15], ARGV[16]
-- Fewer numbers of a batch stand by themselves: who looks for one has to look at each turn of its 4 s.
local TOGETHER = 8
-- So many at most are looked for among the numbers of a batch; of more, the batch's are looked for.
local APART_FEW = 128
local batches, count = {}, 0
do
  local HASHES, BATCHES, many = 8, 17, amount(ARGV[17])
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
local refused = refusal(money, group, row[3], balance)

-- What the lease has, and how its ends are booked: from it, late, or by force.
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
-- Leases whose owners died, and whose time is over.
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
      -- It was opened, and its time was over, or it was given back, before this came.
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

-- The owner goes on: nobody but him has had these ends, unless they stand under their numbers.
local goes_on = word == 'ok' and not again and (step == 'go on' or step == 'close')
-- Whether any may stand under its number. A small hash is read from its beginning for each number that is asked of it: so
-- it is read once.
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
-- Where the entries of those are that were told before; and the tombstones of those that were ended for good by somebody else
-- (release.lua), who knew of no lease that goes on.
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

local used, lost, moved, told = money.used, stored(row[4]), false, 0
local month, before_month, month_is_new = period_of(row[15], month_of(now), used)
local day, before_day, day_is_new = period_of(row[16], day_of(now), used)
-- Of which ends there is a line; nothing: of all.
local lined, answers = nil, {}
-- What entries of earlier turns say of their calls.
local entries = {}
local function charged_before(place, number)
  entries[place] = entries[place] or calls_at(KEYS[5], place)
  return entries[place][number]
end
local function charge_one(i, call_end)
  local first = places[i] and charged_before(places[i], call_end.number)
  -- What was nobody's in a turn may have been charged alone since.
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
  -- A settlement on another key than its lease's is nobody's.
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
  told = told + tell_charge(KEYS[7], now, retention, levels, key, money.enabled and bounds or {},
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
-- What tells nothing as a whole tells nothing in parts.
local function tells_nothing()
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
  and tells_nothing()
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

-- Over a ceiling that was lowered, nothing more is granted from what is leased.
local over = false
for i = 1, #bounds do
  local bound = bounds[i]
  over = over or plus(bound.spent, bound.group and group.held or money.held) > bound.limit
end
-- Nobody could say of how many calls a lease is: where that is limited, each is held by itself.
local may = not refused and not over and not money.calls
local free = room_in(minus(balance, all_held), money, group, 0)
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
  left, all_held, money.held = left + change, minus(all_held + change, 0), minus(money.held + change, 0)
  if group then
    group.held = minus(group.held + change, 0)
  end
  free = math.max(free - change, 0)
  if step == 'open' and left == 0 then
    -- Whoever asked has no lease from here on, whatever a late copy of this turn would find.
    word, resized, stays_closed = refused and 'refused' or 'short', false, true
  elseif not may then
    word = 'refused'
  end
end

-- Before Redis 7 a server that is out of memory lets a script write if its first write is a removal, be it of nothing.
if more == 0 then
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
  local place = call('XADD', KEYS[5], 'MINID', '~', text(math.max(now - retention, 0)), '*', unpack(fields))
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
-- Until when its owner may grant. Where nothing more may be granted it goes on by the turn before until it has heard so, and
-- whoever has forbidden it waits for that; one that asks for nothing more has stopped before it said so. Told again, the turn
-- says that more may be granted, so it may for as long.
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
-- Last, as it is a removal.
for _, other in ipairs(dead) do
  call('HDEL', KEYS[6], other)
end
return {word, left, free, recalled and 2 or short and 1 or 0, answers, told, word == 'fenced' and last or ''}

#!lua flags=allow-oom
-- with: amounts, calendar, clock, money, holds, telling
-- A turn of a lease: ends of calls that it held money for are charged, and it is opened, made larger or smaller, given
-- back. To all other scripts a lease is a hold of its key: what they keep true of holds is true of leases.
-- KEYS[5] = the journal, KEYS[6] = the account's leases, KEYS[7] = what the account tells; then for each end its
-- tombstone and its receipt's place.
-- ARGV: the lease's number, its key; what is done ('open', 'go on', 'close', or 'tell': the ends alone); the word of
-- the turn before this one, and this one's; how much is given back, how much more is asked for, with how little left
-- beside it nobody gets more; how long the hold lives, for how long more may be granted from it (0: nothing is), both in
-- ms; whose it is; retention in ms; then for each end: number, cost, what the lease has for it, fresh (0 or 1), what the
-- caller held, the receipt's item.
-- Answers how it went, what the lease has now, what is free beside it, whether money is short (0 or 1), and for each end
-- how it was booked, charged, loss, whether that is the first result repeated (0 or 1); then how many events its charges
-- told.
local lease, key, step, before, this = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local give, more, short_of = amount(ARGV[6]), amount(ARGV[7]), amount(ARGV[8])
local ttl, grants, owner, retention = amount(ARGV[9]), amount(ARGV[10]), ARGV[11], amount(ARGV[12])
local FIRST, WORDS = 13, 6
local count = (#ARGV - FIRST + 1) / WORDS
local ends, known = {}, {}
for i = 1, count do
  local at = FIRST + (i - 1) * WORDS
  ends[i] = {number = ARGV[at], cost = amount(ARGV[at + 1]), cover = amount(ARGV[at + 2]), fresh = ARGV[at + 3],
    held = text(amount(ARGV[at + 4])), item = ARGV[at + 5]}
end

local row = call('HMGET', KEYS[1], 'b', 'h', 's', 'loss', 'rc', 'o:' .. lease, money_fields(key))
if not row[1] then
  for i = 1, count do
    known[i] = {'no_account', 0, 0, 0}
  end
  return {'gone', 0, 0, 1, known, 0}
end
if count > 0 then
  known = call('MGET', unpack(KEYS, 8, 7 + 2 * count))
end
local now = now_ms()
local balance, all_held, money = stored(row[1]), stored(row[2]), money_of(row, 7, now)
local refused = refusal(money, row[3], balance)

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
local word, again, record_of, since = 'ok', false, nil, text(now)
if step ~= 'tell' then
  record_of = call('HGET', KEYS[6], lease)
  local last, _, began
  if record_of then
    last, _, began = string.match(record_of, '^(%S+) (%d+) (%d+) ')
    since = began
  end
  again = last == this
  if holder ~= key then
    word = 'fenced'
  elseif again then
    word = row[6] and 'ok' or 'gone'
  elseif step == 'open' then
    if record_of or row[6] then
      word = 'fenced'
    elseif booked_here then
      -- It was opened, and its time was over before its owner heard of it.
      word = 'gone'
    end
    -- Those whose owners died, and whose time is over.
    for _, other in ipairs(call('HKEYS', KEYS[6])) do
      if call('HEXISTS', KEYS[1], 'o:' .. other) == 0 then
        call('HDEL', KEYS[6], other)
      end
    end
  elseif not row[6] then
    word = 'gone'
  elseif last ~= before then
    word = 'fenced'
  end
end

local used, lost, moved, trimmed = money.used, stored(row[4]), false, false
local levels, told = nil, 0
local month, before_month, month_is_new = period_of(row[13], month_of(now), used)
local day, before_day, day_is_new = period_of(row[14], day_of(now), used)
local function journal(call_end, place, booked, charged, loss)
  local words = {'kind', 'call', 'at', text(now), 'number', call_end.number, 'key', key, 'held', call_end.held,
    'cost', text(call_end.cost), 'charged', charged, 'loss', loss, 'booked', booked, 'item', call_end.item}
  local added
  if trimmed then
    added = call('XADD', KEYS[5], '*', unpack(words))
  else
    added = call('XADD', KEYS[5], 'MINID', '~', text(math.max(now - retention, 0)), '*', unpack(words))
    trimmed = true
  end
  call('SET', place, added, 'PX', text(retention))
end
-- A receipt outlives its tombstone and tells what was done.
local function told_by(place)
  local line = place and call('XRANGE', KEYS[5], place, place)[1]
  local receipt = {}
  for i = 1, line and #line[2] or 0, 2 do
    receipt[line[2][i]] = line[2][i + 1]
  end
  if receipt.booked and receipt.booked ~= 'stale' then
    return {receipt.booked, tonumber(receipt.charged), tonumber(receipt.loss), 1}
  end
end
local function charge(call_end, tombstone, place, first, placed)
  if first then
    local booked, charged, loss = string.match(first, '^([^:]+):(%d+):(%d+)$')
    return {booked, tonumber(charged), tonumber(loss), 1}
  end
  local before_now = told_by(placed)
  if before_now then
    return before_now
  end
  local booked = booked_here
  if not booked and call_end.fresh == '1' and money.enabled then
    booked = 'forced'
  end
  -- A settlement on another key than its lease's is nobody's.
  if not booked or holder ~= key then
    if not placed then
      journal(call_end, place, 'stale', '0', '0')
    end
    return {'stale', 0, 0, 0}
  end
  local cover = booked == 'held' and math.min(call_end.cover, call_end.cost, left) or 0
  left, all_held, money.held = left - cover, minus(all_held, cover), minus(money.held, cover)
  local beside = 0
  if money.enabled then
    beside = room(minus(balance, plus(all_held, cover)), money, cover)
  end
  local charged = math.min(call_end.cost, plus(cover, beside))
  local loss = minus(call_end.cost, charged)
  levels = levels or call('HMGET', KEYS[1], 'lo', key .. '.lo')
  told = told + tell_charge(KEYS[7], now, retention, levels, key, money.enabled and money.bounds or {}, balance, charged,
    call_end.number)
  balance, used, lost, moved = minus(balance, charged), plus(used, charged), plus(lost, loss), true
  for i = 1, #money.bounds do
    money.bounds[i].spent = plus(money.bounds[i].spent, charged)
  end
  bury(tombstone, booked, text(charged), text(loss))
  journal(call_end, place, booked, text(charged), text(loss))
  return {booked, charged, loss, 0}
end
local answers, seen = {}, {}
for i = 1, count do
  local number = ends[i].number
  if seen[number] then
    local first = answers[seen[number]]
    answers[i] = {first[1], first[2], first[3], 1}
  else
    answers[i] = charge(ends[i], KEYS[6 + 2 * i], KEYS[7 + 2 * i], known[2 * i - 1], known[2 * i])
    seen[number] = i
  end
end

-- Over a ceiling that was lowered, nothing more is granted from what is leased.
local over = false
for i = 1, #money.bounds do
  over = over or plus(money.bounds[i].spent, money.held) > money.bounds[i].limit
end
local may = not refused and not over
local free = room(minus(balance, all_held), money, 0)
local short = not may or free < short_of or math.abs(now - stored(row[5])) < 1000
local resized = false
if word == 'ok' and step ~= 'tell' and not again then
  resized = true
  local change = 0
  if give > 0 or step == 'close' then
    change = -(step == 'close' and left or math.min(give, left))
  elseif more > 0 and not short then
    local leases = call('HLEN', KEYS[6]) + (record_of and 0 or 1)
    change = math.min(more, math.floor(free / (2 * leases)))
  end
  left, all_held, money.held = left + change, minus(all_held + change, 0), minus(money.held + change, 0)
  free = math.max(free - change, 0)
  if step == 'open' and left == 0 then
    word, resized = refused and 'refused' or 'short', false
  elseif not may then
    word = 'refused'
  end
end

-- The removals come first: they are allowed when the server is out of memory.
if resized and step == 'close' then
  call('ZREM', KEYS[2], lease)
  call('HDEL', KEYS[1], 'o:' .. lease)
  call('HDEL', KEYS[6], lease)
elseif resized or (row[6] and moved) then
  call('HSET', KEYS[1], 'o:' .. lease, text(left) .. ':' .. key .. ':0:0')
  if resized then
    call('ZADD', KEYS[2], text(now + ttl), lease)
    local until_ms = may and grants > 0 and now + grants or 0
    call('HSET', KEYS[6], lease, this .. ' ' .. text(until_ms) .. ' ' .. since .. ' ' .. owner)
  end
end
if resized or moved then
  local changed = {'HSET', KEYS[1], 'h', text(all_held), key .. '.h', text(money.held)}
  if moved then
    local more_fields = {'b', text(balance), 'loss', text(lost)}
    if money.enabled then
      more_fields[5], more_fields[6] = key .. '.u', text(used)
      if month_is_new then
        more_fields[#more_fields + 1] = key .. '.m'
        more_fields[#more_fields + 1] = text(month) .. ':' .. text(before_month)
      end
      if day_is_new then
        more_fields[#more_fields + 1] = key .. '.d'
        more_fields[#more_fields + 1] = text(day) .. ':' .. text(before_day)
      end
    end
    for i = 1, #more_fields do
      changed[#changed + 1] = more_fields[i]
    end
  end
  call(unpack(changed))
end
return {word, left, free, short and 1 or 0, answers, told}

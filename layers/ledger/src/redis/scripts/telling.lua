-- What falling money tells: book/telling.rs has the same.

-- The lowest level that what is left has come down to, from above it. Levels stand highest first.
local function passed(levels, before, left)
  local lowest = nil
  for level in string.gmatch(levels or '', '%d+') do
    level = tonumber(level)
    if left <= level and level < before then
      lowest = level
    end
  end
  return lowest
end

-- Adds an event to those of the account. What the feed has had is forgotten with the journal's lines of its time.
local function tell(stream, now, retention, kind, ...)
  call('XADD', stream, 'MINID', '~', text(math.max(now - retention, 0)), '*', 'kind', kind, 'at', text(now), ...)
end

-- What a charge tells of the ceilings of a key and its group, then of the balance. The levels are those of the balance, of
-- the key and of the group. Answers how many events that are.
local function tell_charge(stream, now, retention, levels, key, bounds, balance, charged, number)
  local told = 0
  for i = 1, #bounds do
    local bound = bounds[i]
    local before, left = minus(bound.limit, bound.spent), minus(bound.limit, plus(bound.spent, charged))
    local whose, id = bound.group and 'group' or 'key', bound.group or key
    local level, reached = passed(levels[bound.group and 3 or 2], before, left), floor(bound.limit / 100)
    if level then
      tell(stream, now, retention, 'ceiling_low', whose, id, 'ceiling', bound.ceiling, 'limit', text(bound.limit),
        'level', text(level), 'left', text(left), 'by', number)
      told = told + 1
    end
    if left <= reached and reached < before then
      tell(stream, now, retention, 'ceiling_reached', whose, id, 'ceiling', bound.ceiling, 'limit', text(bound.limit),
        'left', text(left), 'by', number)
      told = told + 1
    end
  end
  local left = minus(balance, charged)
  local level = passed(levels[1], balance, left)
  if level then
    tell(stream, now, retention, 'balance_low', 'level', text(level), 'balance', text(left), 'by', number)
    told = told + 1
  end
  return told
end

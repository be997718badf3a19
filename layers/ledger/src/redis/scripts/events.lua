-- Emits the events of a falling balance, or of a falling amount under a ceiling. The module book/events.rs computes the
-- same events.

-- Returns the lowest level that the amount reaches or crosses when it falls. Levels are sorted from the highest.
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

-- Adds an event to the account's stream. Events are dropped together with journal lines of the same age; by then the
-- feed contains them.
local function emit(stream, now, retention, kind, ...)
  call('XADD', stream, 'MINID', '~', oldest_kept(now, retention), '*', 'kind', kind, 'at', text(now), ...)
end

-- Emits the events of a charge: first for the ceilings of the key and its group, then for the balance. `levels` are the
-- alert levels of the balance, of the key and of the group. Returns the number of events.
local function emit_charge(stream, now, retention, levels, key, bounds, balance, charged, number)
  local emitted = 0
  for i = 1, #bounds do
    local bound = bounds[i]
    local before, left = minus(bound.limit, bound.spent), minus(bound.limit, plus(bound.spent, charged))
    local whose, id = bound.group and 'group' or 'key', bound.group or key
    local level, reached = passed(levels[bound.group and 3 or 2], before, left), floor(bound.limit / 100)
    if level then
      emit(stream, now, retention, 'ceiling_low', whose, id, 'ceiling', bound.ceiling, 'limit', text(bound.limit),
        'level', text(level), 'left', text(left), 'by', number)
      emitted = emitted + 1
    end
    if left <= reached and reached < before then
      emit(stream, now, retention, 'ceiling_reached', whose, id, 'ceiling', bound.ceiling, 'limit', text(bound.limit),
        'left', text(left), 'by', number)
      emitted = emitted + 1
    end
  end
  local left = minus(balance, charged)
  local level = passed(levels[1], balance, left)
  if level then
    emit(stream, now, retention, 'balance_low', 'level', text(level), 'balance', text(left), 'by', number)
    emitted = emitted + 1
  end
  return emitted
end

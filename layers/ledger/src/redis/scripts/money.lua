-- The money of keys and groups.

-- The fields of a key's money, in the order in which `money_of` expects them.
local function money_fields(key)
  return key .. '.s', key .. '.u', key .. '.h', key .. '.l', key .. '.lm', key .. '.ld', key .. '.m', key .. '.d'
end

-- Returns the money of a key, from its fields in `row`, beginning at index `at`. Its bounds are its ceilings, each with
-- the spending that counts against it; the ceiling that resets last comes first. Most keys have no ceilings.
local function money_of(row, at, now)
  local used, bounds = stored(row[at + 1]), {}
  local enabled, group, calls = state_of(row[at])
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
  return {enabled = enabled, used = used, held = stored(row[at + 2]), bounds = bounds, group = group, calls = calls}
end

-- Returns the money of the group that a key is in, in the same form as the money of a key; nil if the key is in no
-- group.
local function group_of(money, now)
  if not money.group then
    return nil
  end
  local name = 'g:' .. money.group
  local row = call('HMGET', KEYS[1], name .. '.lo', money_fields(name))
  if not row[2] then
    return nil
  end
  local group = money_of(row, 2, now)
  group.id, group.month, group.day, group.levels = money.group, row[8], row[9], row[1]
  for i = 1, #group.bounds do
    group.bounds[i].group = group.id
  end
  return group
end

-- Returns the bounds of a key and of its group.
local function bounds_of(money, group)
  if not group then
    return money.bounds
  end
  local all = {unpack(money.bounds)}
  for i = 1, #group.bounds do
    all[#all + 1] = group.bounds[i]
  end
  return all
end

-- Returns the amount that a key can hold in addition to its open holds and to the amount `beside`, and the bound that
-- limits it, or nil. `account` is the free money of the account.
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

-- Like `room`, but also limited by the bounds of the key's group.
local function room_in(account, money, group, beside)
  local least, by = room(account, money, beside)
  if group then
    local left, met = room(least, group, beside)
    return left, met or by
  end
  return least, by
end

-- Returns the refusal that does not depend on an amount, or nil; and the bound that is used up, or nil.
local function refusal(money, group, suspended, balance)
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
  for _, bound in ipairs(group and group.bounds or {}) do
    if bound.spent >= bound.limit then
      return 'used_up', bound
    end
  end
  return nil
end

-- Returns the two words by which scripts report a bound: which ceiling it is, and the index of its month or day.
local function bound_words(bound)
  if bound then
    return (bound.group and 'group_' or '') .. bound.ceiling, bound.index
  end
  return '', 0
end

-- Adds a charge to the money of a group, by calling `change`.
local function charge_group(group, charged, now, change)
  local name = 'g:' .. group.id
  change(name .. '.u', text(plus(group.used, charged)))
  local month, before_month, month_is_new = period_of(group.month, month_of(now), group.used)
  if month_is_new then
    change(name .. '.m', text(month) .. ':' .. text(before_month))
  end
  local day, before_day, day_is_new = period_of(group.day, day_of(now), group.used)
  if day_is_new then
    change(name .. '.d', text(day) .. ':' .. text(before_day))
  end
end

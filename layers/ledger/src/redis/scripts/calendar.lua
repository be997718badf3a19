-- Days and months in UTC, counted from the beginning of 1970. calendar.rs computes the same.

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

-- The current month or day of a key whose spending is `used`: its index, the spending before it, and whether the field
-- must be written. The field contains the period of the key's last charge, "<index>:<spending before it>". If the clock
-- went back over midnight, the last period continues.
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

-- What a key's field `.s` says.

-- Whether it is enabled, '0' or '1'; its group, and how many of its calls may be open at once, or nil. The field is one
-- character where there is neither, or "<0 or 1>:<group>:<calls>".
local function state_of(field)
  if not field or #field == 1 then
    return field, nil, nil
  end
  local enabled, group, calls = string.match(field, '^([01]):([^:]*):(%d*)$')
  return enabled, group ~= '' and group or nil, tonumber(calls)
end

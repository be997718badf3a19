-- The contents of a key's field `.s`.

-- Whether it is enabled, '0' or '1'; its group, or nil; its limit of open calls, or nil. The field is one character if
-- it has neither group nor limit, otherwise "<0 or 1>:<group>:<calls>".
local function state_of(field)
  if not field or #field == 1 then
    return field, nil, nil
  end
  local enabled, group, calls = string.match(field, '^([01]):([^:]*):(%d*)$')
  return enabled, group ~= '' and group or nil, tonumber(calls)
end

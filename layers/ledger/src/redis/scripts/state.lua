-- The contents of a key's field `.s`.

-- Returns whether the key is enabled ('0' or '1'), its group or nil, and its limit of open calls or nil. Without group
-- and limit, the field is one character; otherwise it is "<0 or 1>:<group>:<limit>".
local function state_of(field)
  if not field or #field == 1 then
    return field, nil, nil
  end
  local enabled, group, calls = string.match(field, '^([01]):([^:]*):(%d*)$')
  return enabled, group ~= '' and group or nil, tonumber(calls)
end

#!lua flags=allow-oom
-- with: amounts
-- Creates a group of keys, or changes it. KEYS[2] = the account's key records. ARGV: the group, the step ('create',
-- 'change' or 'remove'), whether the name is set (0 or 1), the name, and the ceilings in total, per month and per day
-- ('=' leaves a ceiling unchanged, an empty text removes it). Returns a result word.
local group, step = ARGV[1], ARGV[2]
local name, parts, ceilings = 'g:' .. group, {'.l', '.lm', '.ld'}, {}
for i = 1, 3 do
  local ceiling = ARGV[4 + i]
  ceilings[i] = (ceiling == '=' or ceiling == '') and ceiling or text(signed_amount(ceiling))
end
if call('HEXISTS', KEYS[1], 'b') == 0 then
  return 'not_found'
end
local row = call('HMGET', KEYS[1], name .. '.s', name .. '.name', name .. '.l', name .. '.lm', name .. '.ld', 'groups')
if step == 'create' then
  if row[1] then
    local same = row[1] == '1' and row[2] == ARGV[4]
    for i = 1, 3 do
      same = same and (row[2 + i] or '') == ceilings[i]
    end
    return same and 'ok' or 'exists'
  end
  call('HSET', KEYS[1], name .. '.s', '1', name .. '.u', '0', name .. '.h', '0', name .. '.c', '0',
    'groups', row[6] and row[6] .. ' ' .. group or group)
elseif not row[1] then
  return 'not_found'
elseif step == 'remove' then
  for _, json in ipairs(call('HVALS', KEYS[2])) do
    local record = cjson.decode(json)
    if record.group == group and record.status ~= 'deleted' then
      return 'in_use'
    end
  end
  call('HSET', KEYS[1], name .. '.s', '0')
end
if ARGV[3] == '1' then
  call('HSET', KEYS[1], name .. '.name', ARGV[4])
end
for i = 1, 3 do
  if ceilings[i] == '' then
    call('HDEL', KEYS[1], name .. parts[i])
  elseif ceilings[i] ~= '=' then
    call('HSET', KEYS[1], name .. parts[i], ceilings[i])
  end
end
return 'ok'

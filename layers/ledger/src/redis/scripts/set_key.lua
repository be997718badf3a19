#!lua flags=allow-oom
-- with: amounts, state, holds
-- Adds or changes a key: its record and its money fields in one step. After this script has run, the server grants only
-- what the new record allows (I12). KEYS[2] = the account's key records, KEYS[3] = holds by expiry time. ARGV: key, the
-- record as it was read (empty if the key must not exist), the new record, its state (see state.lua), and the ceilings
-- in total, per month and per day ('=' leaves a ceiling unchanged, an empty text removes it). Returns a result word and
-- the version of the record.
local key, before, after, state = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local ceilings = {['.l'] = ARGV[5], ['.lm'] = ARGV[6], ['.ld'] = ARGV[7]}
for part, ceiling in pairs(ceilings) do
  if ceiling ~= '=' and ceiling ~= '' then
    ceilings[part] = text(signed_amount(ceiling))
  end
end
if redis.call('HEXISTS', KEYS[1], 'b') == 0 then
  return {'not_found', 0}
end
if (redis.call('HGET', KEYS[2], key) or '') ~= before then
  return {'changed', 0}
end
-- A deleted key stays deleted, whatever change a gateway sends.
if before ~= '' and cjson.decode(before).status == 'deleted' and cjson.decode(after).status ~= 'deleted' then
  return {'deleted', 0}
end
local _, left, limit_before = state_of(call('HGET', KEYS[1], key .. '.s'))
local _, joined, limit = state_of(state)
if joined and joined ~= left and call('HGET', KEYS[1], 'g:' .. joined .. '.s') ~= '1' then
  return {'no_group', 0}
end
-- The key's holds move to the new group. The key's spending so far stays in the old group.
if joined ~= left then
  local row = call('HMGET', KEYS[1], key .. '.u', key .. '.h')
  local function move(group, sign)
    local name = 'g:' .. group
    local there = call('HMGET', KEYS[1], name .. '.h', name .. '.c')
    local carried = math.max(math.min(stored(there[2]) - sign * stored(row[1]), MAX), -MAX)
    call('HSET', KEYS[1], name .. '.h', text(minus(stored(there[1]) + sign * stored(row[2]), 0)), name .. '.c', text(carried))
  end
  if left then
    move(left, -1)
  end
  if joined then
    move(joined, 1)
  end
end
-- From now on, the key's open holds are counted. A lease counts as one hold.
if limit and not limit_before then
  local count = 0
  for _, number in ipairs(call('ZRANGE', KEYS[3], 0, -1)) do
    local hold = call('HGET', KEYS[1], 'o:' .. number)
    if hold then
      local _, holder = parse_hold(hold)
      count = count + (holder == key and 1 or 0)
    end
  end
  call('HSET', KEYS[1], key .. '.n', text(count))
elseif limit_before and not limit then
  call('HDEL', KEYS[1], key .. '.n')
end
for part, ceiling in pairs(ceilings) do
  if ceiling == '' then
    redis.call('HDEL', KEYS[1], key .. part)
  elseif ceiling ~= '=' then
    redis.call('HSET', KEYS[1], key .. part, ceiling)
  end
end
redis.call('HSET', KEYS[1], key .. '.s', state)
redis.call('HSET', KEYS[2], key, after)
return {'ok', redis.call('HINCRBY', KEYS[1], key .. '.v', 1)}

#!lua flags=allow-oom
-- with: amounts
-- Adds or changes a key: its record and its money fields in one step. I12 holds from here on.
-- KEYS[2] = the account's key records. ARGV: key, the record as it was read (empty: there must be
-- none), the new record, enabled (0 or 1), the ceilings in all, of a month and of a day ('=' leaves one,
-- empty takes it away). Answers: word, the record's version.
local key, before, after, enabled = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
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
-- A deleted key stays deleted, whatever a gateway had in mind.
if before ~= '' and cjson.decode(before).status == 'deleted' and cjson.decode(after).status ~= 'deleted' then
  return {'deleted', 0}
end
for part, ceiling in pairs(ceilings) do
  if ceiling == '' then
    redis.call('HDEL', KEYS[1], key .. part)
  elseif ceiling ~= '=' then
    redis.call('HSET', KEYS[1], key .. part, ceiling)
  end
end
redis.call('HSET', KEYS[1], key .. '.s', enabled)
redis.call('HSET', KEYS[2], key, after)
return {'ok', redis.call('HINCRBY', KEYS[1], key .. '.v', 1)}

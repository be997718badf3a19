#!lua flags=allow-oom
-- Writes the copy of a key's record that is looked up by digest, unless a newer copy exists. KEYS[1] = tg:k:<digest>.
-- ARGV: key, account, version, record. Returns whether the digest belongs to this key.
local row = redis.call('HMGET', KEYS[1], 'id', 'version')
if row[1] and row[1] ~= ARGV[1] then
  return 0
end
if tonumber(row[2] or '-1') < tonumber(ARGV[3]) then
  redis.call('HSET', KEYS[1], 'id', ARGV[1], 'account', ARGV[2], 'version', ARGV[3], 'record', ARGV[4])
end
return 1

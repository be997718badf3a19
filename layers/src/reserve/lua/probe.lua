#!lua flags=no-writes
-- Whether the key could hold anything at all. ARGV: key. Answers a word.
local row = redis.call('HMGET', KEYS[1], 'b', 's', ARGV[1] .. '.s', ARGV[1] .. '.l', ARGV[1] .. '.u')
if not row[1] then
  return 'unknown'
end
return refusal(row[3], row[2], stored(row[1]), row[4] and tonumber(row[4]), stored(row[5])) or 'ok'

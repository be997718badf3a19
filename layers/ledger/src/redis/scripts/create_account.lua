#!lua
-- Opens an account. Opening it again with the same name changes nothing. ARGV: name. Returns a result word.
local name = redis.call('HGET', KEYS[1], 'name')
if name then
  return name == ARGV[1] and 'ok' or 'exists'
end
redis.call('HSET', KEYS[1], 'name', ARGV[1], 'b', '0', 'h', '0', 's', '0', 'loss', '0')
return 'ok'

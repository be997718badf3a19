#!lua flags=allow-oom
-- Sets fields of an account. ARGV: field, value, field, value, ... Returns a result word.
if redis.call('HEXISTS', KEYS[1], 'b') == 0 then
  return 'not_found'
end
if #ARGV > 0 then
  redis.call('HSET', KEYS[1], unpack(ARGV))
end
return 'ok'

#!lua flags=no-writes
-- Keys of an account as operators see them. KEYS[2] = its key records. ARGV: the keys, none for all.
-- Answers nil, or balance, held, and a row for each key: record, ceiling, used, held, version.
local row = redis.call('HMGET', KEYS[1], 'b', 'h')
if not row[1] then
  return false
end
local rows = {}
for _, key in ipairs(#ARGV > 0 and ARGV or redis.call('HKEYS', KEYS[2])) do
  local record = redis.call('HGET', KEYS[2], key)
  if record then
    local money = redis.call('HMGET', KEYS[1], key .. '.l', key .. '.u', key .. '.h', key .. '.v')
    rows[#rows + 1] = {record, money[1] and tonumber(money[1]), stored(money[2]), stored(money[3]), stored(money[4])}
  end
end
return {stored(row[1]), stored(row[2]), rows}

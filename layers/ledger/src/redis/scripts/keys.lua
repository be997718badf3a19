#!lua flags=no-writes
-- with: amounts, clock, calendar, state, money
-- Reads keys of an account as operators see them. KEYS[2] = its key records. ARGV: the ids of the keys; none means all
-- keys.
-- Returns nil if the account does not exist, or: balance, held, the time in ms, and for each key its record, its
-- version followed by its money fields, and the money fields of its group (empty if it is in no group).
local row = redis.call('HMGET', KEYS[1], 'b', 'h')
if not row[1] then
  return false
end
local rows = {}
for _, key in ipairs(#ARGV > 0 and ARGV or redis.call('HKEYS', KEYS[2])) do
  local record = redis.call('HGET', KEYS[2], key)
  if record then
    local fields = call('HMGET', KEYS[1], key .. '.v', money_fields(key))
    local _, group = state_of(fields[2])
    rows[#rows + 1] = {record, fields, group and call('HMGET', KEYS[1], money_fields('g:' .. group)) or {}}
  end
end
return {stored(row[1]), stored(row[2]), now_ms(), rows}

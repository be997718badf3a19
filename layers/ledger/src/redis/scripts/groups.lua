#!lua flags=no-writes
-- with: amounts, clock, calendar, state, money
-- Reads the groups of an account as operators see them. Returns nil if the account does not exist, or: balance, held,
-- the time in ms, and for each group its id, its name, its carried amount, and its money fields.
local row = call('HMGET', KEYS[1], 'b', 'h', 'groups')
if not row[1] then
  return false
end
local rows = {}
for group in string.gmatch(row[3] or '', '%S+') do
  local name = 'g:' .. group
  local more = call('HMGET', KEYS[1], name .. '.name', name .. '.c')
  rows[#rows + 1] = {group, more[1] or '', stored(more[2]), call('HMGET', KEYS[1], money_fields(name))}
end
return {stored(row[1]), stored(row[2]), now_ms(), rows}

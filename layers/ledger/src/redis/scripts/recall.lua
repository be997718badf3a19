#!lua
-- with: amounts, clock
-- Recalls the leased money of the account that no call holds: no lease is enlarged for one second (see turn.lua).
-- KEYS[2] = the account's leases. Returns how many leases may still grant holds.
local now, count = now_ms(), 0
for _, record in ipairs(call('HVALS', KEYS[2])) do
  local until_ms = string.match(record, '^%S+ (%d+) ')
  if until_ms and tonumber(until_ms) > now then
    count = count + 1
  end
end
if count > 0 and call('HEXISTS', KEYS[1], 'b') == 1 then
  call('HSET', KEYS[1], 'rc', text(now))
end
return count

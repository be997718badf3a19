#!lua
-- with: amounts, clock
-- Asks for what the account's leases have and no call holds: none gets more for a second. KEYS[2] = the account's
-- leases. ARGV: how long they are asked for it at most, in ms. Answers how many may still grant something.
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

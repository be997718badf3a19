#!lua flags=no-writes
-- with: amounts, clock
-- Reads the leases of an account. KEYS[2] = its leases, KEYS[3] = its holds by expiry time. Returns the time in ms, and
-- for each lease: its number, its hold (empty if it has expired), when the hold expires, and its record.
local rows, fields = {}, call('HGETALL', KEYS[2])
for i = 1, #fields, 2 do
  rows[#rows + 1] = {fields[i], call('HGET', KEYS[1], 'o:' .. fields[i]) or '',
    stored(call('ZSCORE', KEYS[3], fields[i])), fields[i + 1]}
end
return {now_ms(), rows}

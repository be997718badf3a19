#!lua flags=no-writes
-- with: amounts, clock, calendar, state, money
-- Checks whether the key could hold anything at all. ARGV: key. Returns a word; if a ceiling refuses, also the ceiling
-- and the index of its month or day.
local row = redis.call('HMGET', KEYS[1], 'b', 's', money_fields(ARGV[1]))
if not row[1] then
  return {'unknown', '', 0}
end
local now = now_ms()
local money = money_of(row, 3, now)
local refused, met = refusal(money, group_of(money, now), row[2], stored(row[1]))
return {refused or 'ok', bound_words(met)}

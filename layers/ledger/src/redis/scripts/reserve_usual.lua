#!lua
-- with: calendar
-- The usual case of reserve.lua, which handles all cases: the number is new, and the key may have all that it wants.
-- Amounts are written as they were passed. In any other case this changes nothing and returns nothing.
do
  local call, number, key = redis.call, ARGV[1], ARGV[2]
  local want, least, ttl = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
  local open, key_holds = 'o:' .. number, key .. '.h'
  local row = call('HMGET', KEYS[1], 'b', 'h', 's', open,
    key .. '.s', key_holds, key .. '.l', key .. '.lm', key .. '.ld')
  local balance, held, key_held = tonumber(row[1] or '0'), tonumber(row[2] or '0'), tonumber(row[6] or '0')
  local free, spendable = balance - held, balance > 0
  local time = call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)

  local total, monthly, daily = row[7], row[8], row[9]
  if total or monthly or daily then
    local more = call('HMGET', KEYS[1], key .. '.u', key .. '.m', key .. '.d')
    local used = tonumber(more[1] or '0')
    local function bound(ceiling, before)
      local left = tonumber(ceiling) - math.max(used - before, 0)
      free, spendable = math.min(free, left - key_held), spendable and left > 0
    end
    if total then
      bound(total, 0)
    end
    if monthly then
      local _, before = period_of(more[2], month_of(now), used)
      bound(monthly, before)
    end
    if daily then
      local _, before = period_of(more[3], day_of(now), used)
      bound(daily, before)
    end
  end

  if want and least and ttl and spendable and row[5] == '1' and row[3] ~= '1' and not row[4]
    and 0 <= least and least <= want and want <= free and 0 <= ttl and ttl <= 9007199254740991
    and want % 1 == 0 and least % 1 == 0 and ttl % 1 == 0
    -- Few accounts have expired holds; usually one command answers both questions.
    and (call('EXISTS', KEYS[5], KEYS[3]) == 0
      or call('EXISTS', KEYS[5]) == 0 and call('HEXISTS', KEYS[3], number) == 0) then
    -- `call` writes whole numbers up to 10^17 as digits.
    call('HSET', KEYS[1], 'h', held + want, key_holds, key_held + want,
      open, ARGV[3] .. ':' .. key .. ':' .. ARGV[3] .. ':' .. ARGV[4])
    call('ZADD', KEYS[2], now + ttl, number)
    return {want, free - want}
  end
end

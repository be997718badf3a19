#!lua flags=allow-oom
-- The usual case of settle.lua, which handles all cases: the hold is open, has the amount that the caller passes, and
-- pays for the whole call; and the charge is not the key's first of the day, thus not of the month: `.m` is updated
-- whenever `.d` is. Amounts are written as they were passed. One in 32 milliseconds is left to settle.lua, which drops
-- old lines of the journal. In any other case this changes nothing and returns nothing.
do
  local call, number, key = redis.call, ARGV[1], ARGV[2]
  local cost, held, retention = tonumber(ARGV[3]), tonumber(ARGV[5]), tonumber(ARGV[7])
  local open = 'o:' .. number
  local row = call('HMGET', KEYS[1], 'b', 'h', open,
    key .. '.s', key .. '.u', key .. '.h', key .. '.m', key .. '.d', 'lo', key .. '.lo',
    key .. '.l', key .. '.lm', key .. '.ld')
  local balance, all_held, used, key_held = row[1], row[2], row[5], row[6]
  -- A longer state contains a group, or a limit of open calls.
  if balance and all_held and row[3] and row[4] and #row[4] == 1 and used and key_held and cost and held and retention then
    balance, all_held, used, key_held = tonumber(balance), tonumber(all_held), tonumber(used), tonumber(key_held)
    local time = call('TIME')
    local at = time[1] .. string.sub('00000' .. time[2], -6, -4)
    local now = tonumber(at)
    -- A charge that passes a level or reaches a ceiling emits an event, which is not the usual case.
    local tells = false
    if row[9] or row[11] or row[12] or row[13] then
      local function watch(levels, before)
        for level in string.gmatch(levels, '%d+') do
          level = tonumber(level)
          tells = tells or before - cost <= level and level < before
        end
      end
      local function bound(ceiling, before)
        if ceiling then
          local limit, spent = tonumber(ceiling), math.max(used - (tonumber(before) or 0), 0)
          watch((row[10] or '') .. ',' .. math.floor(limit / 100), math.max(limit - spent, 0))
        end
      end
      watch(row[9] or '', balance)
      bound(row[11], '0')
      bound(row[12], string.match(row[7] or '', ':(%d+)$'))
      bound(row[13], string.match(row[8] or '', ':(%d+)$'))
    end
    local last_day = row[7] and row[8] and string.match(row[8], '^(%d+):%d+$')
    if last_day and tonumber(last_day) == (now - now % 86400000) / 86400000 and now % 32 ~= 0
      and not tells
      and string.find(row[3], ARGV[5] .. ':' .. key .. ':', 1, true) == 1
      and 0 <= cost and cost <= held and cost <= balance and held <= all_held and held <= key_held
      and held <= 9007199254740991 and used + cost <= 9007199254740991
      and 0 <= retention and retention <= now
      and cost % 1 == 0 and held % 1 == 0 and retention % 1 == 0
      and call('EXISTS', KEYS[5], KEYS[7]) == 0 then
      -- The removals come first, as in `close`. `call` writes whole numbers up to 10^17 as digits.
      call('ZREM', KEYS[2], number)
      call('HDEL', KEYS[1], open)
      call('HSET', KEYS[1], 'b', balance - cost, 'h', all_held - held,
        key .. '.h', key_held - held, key .. '.u', used + cost)
      call('SET', KEYS[5], 'held:' .. ARGV[3] .. ':0', 'PX', '600000')
      local added = call('XADD', KEYS[6], '*',
        'kind', 'call', 'at', at, 'number', number, 'key', key, 'held', ARGV[5], 'cost', ARGV[3],
        'charged', ARGV[3], 'loss', '0', 'booked', 'held', 'item', ARGV[6])
      call('SET', KEYS[7], added, 'PX', ARGV[7])
      return cost
    end
  end
end

#!lua flags=allow-oom
-- The usual case of settle.lua, which knows all of them: the hold stands, is what the caller says, pays for the whole
-- call, and is not the key's first one of the day, thus not of the month: `.m` is brought up to date wherever `.d` is.
-- Amounts are written as they came. Of all milliseconds one in 32 is left to settle.lua, which drops old lines of the
-- journal. What is not usual leaves everything alone and answers nothing.
do
  local call, number, key = redis.call, ARGV[1], ARGV[2]
  local cost, held, retention = tonumber(ARGV[3]), tonumber(ARGV[5]), tonumber(ARGV[7])
  local open = 'o:' .. number
  local row = call('HMGET', KEYS[1], 'b', 'h', open,
    key .. '.s', key .. '.u', key .. '.h', key .. '.m', key .. '.d', 'lo', key .. '.lo',
    key .. '.l', key .. '.lm', key .. '.ld')
  local balance, all_held, used, key_held = row[1], row[2], row[5], row[6]
  -- A longer state tells of a group, or of a limit of calls.
  if balance and all_held and row[3] and row[4] and #row[4] == 1 and used and key_held and cost and held and retention then
    balance, all_held, used, key_held = tonumber(balance), tonumber(all_held), tonumber(used), tonumber(key_held)
    local time = call('TIME')
    local at = time[1] .. string.sub('00000' .. time[2], -6, -4)
    local now = tonumber(at)
    -- What comes down to a level, or reaches a ceiling, has to be told: that is not usual.
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
      -- The removals come first, as in `close`. `call` writes whole numbers as digits, to 10^17.
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

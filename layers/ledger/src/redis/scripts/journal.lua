-- The account's journal: adds lines, drops lines that are older than the retention, and counts what it drops.
-- `jt` is the journal's clock. It never goes back, and a line advances it by at most AHEAD_MS. So if the server's clock
-- jumps ahead, each new line drops at most three days of the oldest lines. `jf` is "<number of dropped lines>:<time in
-- ms before which all of them were written>".

local AHEAD_MS = 3 * 86400000
-- Lines are dropped at most once in this time (ms), because counting the dropped lines takes two reads of the stream's
-- state.
local TRIM_EVERY_MS = 60000

-- The time in the youngest line. Positions never decrease, but the times in lines may.
local function last_time(stream)
  local last = call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  for i = 1, last and #last[2] or 0, 2 do
    if last[2][i] == 'at' then
      return tonumber(last[2][i + 1])
    end
  end
end

-- Returns the fields of XINFO STREAM, by name. It is used instead of XLEN, because a Redis user may lack the right to
-- XLEN.
local function stream_info(stream)
  if call('EXISTS', stream) == 0 then
    return {length = 0, ['entries-added'] = 0}
  end
  local info, found = call('XINFO', 'STREAM', stream), {}
  for i = 1, #info, 2 do
    found[info[i]] = info[i + 1]
  end
  return found
end

-- Returns the number of lines that were added and do not exist any more. Nil before Redis 7.0, which does not count
-- added lines.
local function missing_lines(info)
  return info['entries-added'] and info['entries-added'] - info.length
end

local function clock_after(clock, now)
  return math.max(clock, math.min(now, clock + AHEAD_MS))
end

-- Lines and events before this time may be dropped.
local function oldest_kept(now, retention)
  local clock = tonumber(call('HGET', KEYS[1], 'jt') or now)
  return text(math.max(clock_after(clock, now) - retention, 0))
end

-- Adds a line, and returns its position. If `trims` is set and the last trim is long enough ago, also drops and counts
-- the lines that are too old. Lines that are missing at the first count are counted as dropped for their age.
local function add_line(stream, now, retention, trims, ...)
  if not trims then
    return call('XADD', stream, '*', ...)
  end
  local known = call('HMGET', KEYS[1], 'jt', 'jf')
  local clock = clock_after(tonumber(known[1] or last_time(stream) or now), now)
  if known[1] and known[2] and clock - known[1] < math.min(TRIM_EVERY_MS, retention / 64) then
    return call('XADD', stream, '*', ...)
  end
  local oldest = text(math.max(clock - retention, 0))
  local info = stream_info(stream)
  local dropped, cut = string.match(known[2] or text(missing_lines(info) or 0) .. ':0', '^(%d+):(%d+)$')
  local place = call('XADD', stream, 'MINID', '~', oldest, '*', ...)
  local gone = info.length + 1 - stream_info(stream).length
  if gone > 0 then
    dropped, cut = text(dropped + gone), oldest
  end
  call('HSET', KEYS[1], 'jt', text(clock), 'jf', dropped .. ':' .. cut)
  return place
end

#!lua
-- Writes lines of a journal as another ledger had them, oldest first. Lines that exist already are skipped. KEYS[2] =
-- the journal, and after it the positions of the calls' receipts.
-- ARGV: whether older lines are missing (0 or 1); then for each line: ms and sequence number of its position, how long
-- its receipt is kept in ms (0 if the line is not a call), how many arguments follow for it, and its fields and values
-- in turn.
-- Returns the number of lines written.
local last_ms, last_sequence = 0, 0
if redis.call('EXISTS', KEYS[2]) == 1 then
  local info = redis.call('XINFO', 'STREAM', KEYS[2])
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
      local ms, sequence = string.match(info[i + 1], '^(%d+)-(%d+)$')
      last_ms, last_sequence = tonumber(ms), tonumber(sequence)
    end
  end
elseif ARGV[1] == '1' then
  -- A journal counts as incomplete if more lines were added to its stream than the stream contains (see books.lua). To
  -- mark it as incomplete, a line is added and deleted.
  redis.call('XADD', KEYS[2], '0-1', 'kind', 'forgotten')
  redis.call('XDEL', KEYS[2], '0-1')
  last_sequence = 1
end
local at, receipt, written = 2, 3, 0
while at <= #ARGV do
  local ms, sequence, count = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 3])
  local place = ARGV[at] .. '-' .. ARGV[at + 1]
  if ms > last_ms or (ms == last_ms and sequence > last_sequence) then
    redis.call('XADD', KEYS[2], place, unpack(ARGV, at + 4, at + 3 + count))
    last_ms, last_sequence, written = ms, sequence, written + 1
  end
  if ARGV[at + 2] ~= '0' then
    redis.call('SET', KEYS[receipt], place, 'PX', ARGV[at + 2])
    receipt = receipt + 1
  end
  at = at + 4 + count
end
return written

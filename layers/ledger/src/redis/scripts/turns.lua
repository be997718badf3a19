-- The calls that turns of leases have charged: journal entries with a line per call.

-- The results of the calls in the entry at a position, by call number. The entry is a turn of a lease or a single call.
-- A result is: booked, charged, loss, and that it is a repeat.
local function calls_at(journal, place)
  local calls = {}
  local entry = call('XRANGE', journal, place, place)[1]
  local alone = {}
  for i = 1, entry and #entry[2] or 0, 2 do
    alone[entry[2][i]] = entry[2][i + 1]
    if entry[2][i] == 'calls' then
      for number, charged, loss, booked in
        string.gmatch(entry[2][i + 1], '(%S+) %d+ %d+ (%d+) (%d+) (%S+) [^\n]*')
      do
        calls[number] = {booked, tonumber(charged), tonumber(loss), 1}
      end
    end
  end
  if alone.kind == 'call' then
    calls[alone.number] = {alone.booked, tonumber(alone.charged), tonumber(alone.loss), 1}
  end
  return calls
end

-- Splits concatenated parts of numbers, each the part that differs within its batch.
local NUMBER = 12
local function numbers_in(text)
  local numbers = {}
  for at = 1, #text, NUMBER do
    numbers[#numbers + 1] = string.sub(text, at, at + NUMBER - 1)
  end
  return numbers
end

-- The turns in a hash, "<first>:<last>:<position>": the times of their first and last numbers, in ms.
local function turns_in(hash)
  local turns = {hash = hash, fields = call('HKEYS', hash), first = {}, last = {}, numbers = {}}
  for i, field in ipairs(turns.fields) do
    turns.first[i], turns.last[i] = tonumber(string.sub(field, 1, 4)), tonumber(string.sub(field, 6, 9))
  end
  return turns
end

-- The position of that one of `turns` that has charged the call `number`, or nothing.
local function turn_with(number, turns)
  -- The lowest 12 bits of the time in the number.
  local high, low = string.byte(number, 1, 2)
  local time = high % 16 * 256 + low
  local first, last = turns.first, turns.last
  for i = 1, #first do
    if first[i] <= time and time <= last[i] then
      local numbers = turns.numbers[i] or call('HGET', turns.hash, turns.fields[i])
      turns.numbers[i] = numbers
      local at = string.find(numbers, number, 1, true)
      while at and at % NUMBER ~= 1 do
        at = string.find(numbers, number, at + 1, true)
      end
      if at then
        return string.sub(turns.fields[i], 11)
      end
    end
  end
end

-- Functions that find calls charged by lease turns: journal entries with one line per call.

-- Returns the results of the calls in the journal entry at a position, by call number. The entry is a lease turn or a
-- single call. A result is: booked, charge, loss, and that it is a repeat.
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

-- Splits concatenated number parts. Each is the part of a number that differs within its batch.
local NUMBER = 12
local function numbers_in(text)
  local numbers = {}
  for at = 1, #text, NUMBER do
    numbers[#numbers + 1] = string.sub(text, at, at + NUMBER - 1)
  end
  return numbers
end

-- Returns the turns in a hash, whose values are "<first>:<last>:<position>": the times of the first and the last number
-- of a batch in ms, and the position of the turn.
local function turns_in(hash)
  local turns = {hash = hash, fields = call('HKEYS', hash), first = {}, last = {}, numbers = {}}
  for i, field in ipairs(turns.fields) do
    turns.first[i], turns.last[i] = tonumber(string.sub(field, 1, 4)), tonumber(string.sub(field, 6, 9))
  end
  return turns
end

-- Returns the position of the turn, among `turns`, that has charged the call `number`; nothing if none has.
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

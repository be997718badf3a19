-- What turns of leases have charged: entries of the journal with a line for each call.

-- What the entry at a place says of its calls, or of the one that was settled by itself, by number: how each was booked, charged, loss, and that it is told again.
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

-- What each of so many numbers does not share with the others of its batch; they stand one behind the other.
local NUMBER = 12
local function numbers_in(text)
  local numbers = {}
  for at = 1, #text, NUMBER do
    numbers[#numbers + 1] = string.sub(text, at, at + NUMBER - 1)
  end
  return numbers
end

-- The turns in a hash, "<first>:<last>:<place>": the times of the first and of the last of their numbers, in ms.
local function turns_in(hash)
  local turns = {hash = hash, fields = call('HKEYS', hash), first = {}, last = {}, numbers = {}}
  for i, field in ipairs(turns.fields) do
    turns.first[i], turns.last[i] = tonumber(string.sub(field, 1, 4)), tonumber(string.sub(field, 6, 9))
  end
  return turns
end

-- The place of the turn among these that has told a number, or nothing.
local function turn_with(number, turns)
  -- The lowest 12 bits of its time.
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

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

-- Amounts are whole numbers. Within 2^53 they are exact, both here and as arguments of `call`, which writes them as
-- digits.

local MAX = 9007199254740991
local call, floor = redis.call, math.floor

-- `..` and tostring() write numbers from 10^14 on in the form 1e+14, so they are formatted here.
local function text(n)
  return string.format('%.0f', n)
end

-- Parses an amount among the arguments. It fails for an invalid amount; scripts parse all amounts before they write.
local function signed_amount(argument)
  local n = tonumber(argument)
  if not n or n ~= floor(n) or n < -MAX or n > MAX then
    error('not an amount within 2^53: ' .. tostring(argument))
  end
  return n
end

local function amount(argument)
  local n = signed_amount(argument)
  if n < 0 then
    error('a negative amount: ' .. argument)
  end
  return n
end

local function stored(field)
  return tonumber(field or '0')
end

local function plus(a, b)
  return math.min(a + b, MAX)
end

local function minus(a, b)
  return math.max(a - b, 0)
end

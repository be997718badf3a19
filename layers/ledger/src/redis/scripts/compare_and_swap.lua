#!lua
-- Writes a document if its version is still ARGV[2] (0: if it does not exist). KEYS[1] = all documents,
-- "<version>:<text>". ARGV: name, version, text; an empty text deletes the document. Returns whether it was written.
local known = redis.call('HGET', KEYS[1], ARGV[1])
local there = known and string.match(known, '^(%d+):') or '0'
if there ~= ARGV[2] then
  return 0
end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f:', ARGV[2] + 1) .. ARGV[3])
end
return 1

#!lua
-- Writes a note if its version is still ARGV[2] (0: if there is no note). KEYS[1] = all notes, "<version>:<text>".
-- ARGV: name, version, text; an empty text deletes the note. Returns a word.
local known = redis.call('HGET', KEYS[1], ARGV[1])
local there = known and string.match(known, '^(%d+):') or '0'
if there ~= ARGV[2] then
  return 'exists'
end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f:', ARGV[2] + 1) .. ARGV[3])
end
return 'ok'

#!lua flags=no-writes
-- Looks wins up.
--
-- ARGV: request ids
-- Reply: {win | false, kept reply | false, ...}, a pair per id

local replies = {}
for i, id in ipairs(ARGV) do
  replies[i] = id .. ':r'
end
local wins = redis.call('HMGET', WINS, unpack(ARGV))
local kept = redis.call('HMGET', BODIES, unpack(replies))
local found = {}
for i in ipairs(ARGV) do
  found[2 * i - 1], found[2 * i] = wins[i], kept[i]
end
return found

#!lua flags=no-writes
-- Looks wins up.
--
-- ARGV: request ids
-- Reply: {win | false, kept reply | false, dead since ms | false, ...}, three per id

local replies = {}
for i, id in ipairs(ARGV) do
  replies[i] = id .. ':r'
end
local wins = redis.call('HMGET', WINS, unpack(ARGV))
local kept = redis.call('HMGET', BODIES, unpack(replies))
local dead = redis.call('ZMSCORE', DEAD, unpack(ARGV))
local found = {}
for i in ipairs(ARGV) do
  found[3 * i - 2], found[3 * i - 1], found[3 * i] = wins[i], kept[i], dead[i]
end
return found

#!lua flags=no-writes
-- Looks wins up.
--
-- ARGV: request ids; without any it only tells whether there is something to look in
-- Reply: {"ok", win | false, kept reply | false, dead since ms | false, ...}, three per id, or {"not_preheated" | "fenced"}

local present = keys_present()
if present < KEY_COUNT then
  return { present == 0 and 'not_preheated' or 'fenced' }
end
if #ARGV == 0 then
  return { 'ok' }
end
local replies = {}
for i, id in ipairs(ARGV) do
  replies[i] = id .. ':r'
end
local wins = redis.call('HMGET', WINS, unpack(ARGV))
local kept = redis.call('HMGET', BODIES, unpack(replies))
local dead = redis.call('ZMSCORE', DEAD, unpack(ARGV))
local found = { 'ok' }
for i in ipairs(ARGV) do
  found[3 * i - 1], found[3 * i], found[3 * i + 1] = wins[i], kept[i], dead[i]
end
return found

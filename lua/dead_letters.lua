#!lua flags=no-writes
-- One page of the dead letters, in the order of their marks; those of one millisecond by their ids.
--
-- ARGV: 1 most wins, 2 marked at ms and 3 request id of the last one of the page before, or nothing
-- Reply: {"ok", request id, win, marked at ms, ...}, three per win, or {"not_preheated" | "fenced"}

local present = keys_present()
if present < KEY_COUNT then
  return { present == 0 and 'not_preheated' or 'fenced' }
end
local most, ids = tonumber(ARGV[1]), {}
local from = '-inf'
if ARGV[2] then
  -- Few share a millisecond: each mark is a call of its own.
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', DEAD, ARGV[2], ARGV[2])) do
    if id > ARGV[3] and #ids < most then
      ids[#ids + 1] = id
    end
  end
  from = '(' .. ARGV[2]
end
-- The empty member stands at +inf.
for _, id in ipairs(redis.call('ZRANGEBYSCORE', DEAD, from, '(+inf', 'LIMIT', 0, most - #ids)) do
  ids[#ids + 1] = id
end
if #ids == 0 then
  return { 'ok' }
end
local wins, marked, page = redis.call('HMGET', WINS, unpack(ids)), redis.call('ZMSCORE', DEAD, unpack(ids)), { 'ok' }
for i, id in ipairs(ids) do
  page[3 * i - 1], page[3 * i], page[3 * i + 1] = id, wins[i], marked[i]
end
return page

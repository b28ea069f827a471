#!lua
-- Puts an order into an activity's queue, unless it waits there already.
--
-- KEYS  1 stream   2 sorted set: request id → when it was queued
-- ARGV  1 request id   2 how long an id counts as waiting, ms   3 entries at most   4… field, value, …
-- Reply QUEUED | WAITING (nothing changed) | FULL (nothing changed)
--
-- The gate repeats a delivery until the order is booked. Without the set, a slow database would find the same orders
-- queued again and again. An id is forgotten after a while, so that an entry lost from the stream can be queued anew.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local since = redis.call('ZSCORE', KEYS[2], ARGV[1])
if since and now - tonumber(since) < tonumber(ARGV[2]) then
  return 'WAITING'
end
if redis.call('XLEN', KEYS[1]) >= tonumber(ARGV[3]) then
  return 'FULL'
end
redis.call('XADD', KEYS[1], '*', unpack(ARGV, 4))
redis.call('ZADD', KEYS[2], now, ARGV[1])
return 'QUEUED'

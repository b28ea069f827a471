#!lua flags=allow-oom
-- Forgets entries that stand in the ledger now: acknowledged, deleted, and no longer waiting. A full server must
-- still be emptied.
--
-- KEYS  1 stream   2 sorted set: request id → when it was queued
-- ARGV  1 group   2 number n of entries (at most 1,000)   3…n+2 entry ids   then their request ids, where known
-- Reply number of entries deleted
local n = tonumber(ARGV[2])
redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, 3, n + 2))
local deleted = redis.call('XDEL', KEYS[1], unpack(ARGV, 3, n + 2))
if #ARGV > n + 2 then
  redis.call('ZREM', KEYS[2], unpack(ARGV, n + 3))
end
return deleted

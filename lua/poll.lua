#!lua flags=allow-oom
-- Tells a gate how the activity stands and what changed since its last question, and notes that the gate lives. A full server must still be seen.
--
-- ARGV: 1 gate id or nothing, 2 epoch vouched for or "0", 3 run vouched for or "-", 4 journal cursor, 5 most entries
-- Reply: {"ok", now_ms, server run, meta, stock, deliveries waiting, dead letters, entries}, or {"not_preheated" |
--        "incomplete", now_ms, server run}; meta and stock as HGETALL, entries as XRANGE

local present = keys_present()
if present < KEY_COUNT then
  return { present == 0 and 'not_preheated' or 'incomplete', now, server_run() }
end
if ARGV[1] ~= '' then
  redis.call('HSET', GATES, ARGV[1], int(now) .. ' ' .. ARGV[2] .. ' ' .. ARGV[3])
end
return {
  'ok', now, server_run(),
  redis.call('HGETALL', META),
  redis.call('HGETALL', STOCK),
  redis.call('ZCARD', DUE) - 1,
  redis.call('ZCARD', DEAD) - 1,
  redis.call('XRANGE', JOURNAL, '(' .. ARGV[4], '+', 'COUNT', ARGV[5]),
}

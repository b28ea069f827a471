#!lua flags=allow-oom
-- Tells a gate how the activity stands and what changed since its last question, and notes that the gate lives, and what it sees that bars the sale. A full server must still be seen.
--
-- ARGV: 1 gate id or nothing, 2 epoch vouched for or "0", 3 run vouched for or "-", 4 journal cursor, 5 most entries
-- Reply: {"ok", now_ms, server run, meta, stock, deliveries waiting, dead letters, entries}, or {"not_preheated" |
--        "incomplete", now_ms, server run}; meta and stock as HGETALL, entries as XRANGE

local present = keys_present()
if present < KEY_COUNT then
  -- A key that is put back does not tell what was lost meanwhile, and a gate that starts afterwards would not know.
  if redis.call('EXISTS', META) == 1 then
    redis.call('HSET', META, 'barred', 'fenced')
  end
  return { present == 0 and 'not_preheated' or 'incomplete', now, server_run() }
end
if ARGV[1] ~= '' then
  redis.call('HSET', GATES, ARGV[1], int(now) .. ' ' .. ARGV[2] .. ' ' .. ARGV[3])
end
-- The run may come back: a former primary whose process lived on is promoted again, with what it then copied from the
-- server that had lost writes. The mark is copied with it.
local run, meta = server_run(), redis.call('HMGET', META, 'run_id', 'barred')
if meta[1] ~= run and not meta[2] then
  redis.call('HSET', META, 'barred', 'suspect')
end
return {
  'ok', now, run,
  redis.call('HGETALL', META),
  redis.call('HGETALL', STOCK),
  redis.call('ZCARD', DUE) - 1,
  redis.call('ZCARD', DEAD) - 1,
  redis.call('XRANGE', JOURNAL, '(' .. ARGV[4], '+', 'COUNT', ARGV[5]),
}

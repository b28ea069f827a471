#!lua
-- Pauses an activity (no attempt wins) or lifts an operator's pause, nothing else.
--
-- ARGV: 1 epoch, 2 run id, 3 not_after_ms, 4 paused (0|1)
-- Reply: {"ok", now_ms, "applied" | "already", 0}

local why = barred_or_suspect()
if why then
  return { why, now }
end
if redis.call('HGET', META, 'paused') == ARGV[4] then
  return { 'ok', now, 'already', 0 }
end
redis.call('HSET', META, 'paused', ARGV[4])
note('paused', 'on', ARGV[4])
return { 'ok', now, 'applied', 0 }

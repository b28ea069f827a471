#!lua flags=allow-oom
-- Records what the order service said of a win, unless that gives units back (release.lua). A full server must still let wins finish.
--
-- ARGV: 1 epoch, 2 run id, 3 not_after_ms, 4 request id, 5 "queued" | "booked" | "unknown", 6 reply,
--       7 first pause ms, 8 longest pause ms
-- Reply: {"ok", now_ms, "applied" | "already" | "conflict", state, won_at_ms, reply|false}
--        or {"ok", now_ms, "unknown_win"}

local why = barred_or_suspect()
if why then
  return { why, now }
end
local id, said, reply = ARGV[4], ARGV[5], ARGV[6]
local found = redis.call('HGET', WINS, id)
if not found then
  return { 'ok', now, 'unknown_win' }
end
local win = parse_win(found)

local function answer(outcome)
  return { 'ok', now, outcome, unpack(told(win, id)) }
end

if win.state ~= 'h' then
  local cause = string.match(win.state, '^r:(%a+):')
  if said == 'booked' and (cause == 'refused' or cause == 'void') then
    return answer('conflict')
  end
  return answer('already')
end

if said == 'booked' then
  win.state = 'a'
  redis.call('HSET', WINS, id, format_win(win))
  redis.call('HSET', BODIES, id .. ':r', reply)
  redis.call('HDEL', BODIES, id .. ':p')
  redis.call('ZREM', DUE, id)
  note('booked', 'id', id)
else
  local pause = math.min(tonumber(ARGV[7]) * 2 ^ math.min(win.tries, 20), tonumber(ARGV[8]))
  win.tries = win.tries + 1
  redis.call('HSET', WINS, id, format_win(win))
  if said == 'queued' then
    redis.call('HSETNX', BODIES, id .. ':r', reply)
  end
  redis.call('ZADD', DUE, int(now + pause), id)
end
return answer('applied')

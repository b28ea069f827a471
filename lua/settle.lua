#!lua flags=allow-oom
-- Records what the order service said of a win, unless that gives units back (release.lua). A full server must still let wins finish.
--
-- ARGV: 1 epoch, 2 run id, 3 not_after_ms, 4 request id, 5 "queued" | "booked" | "unknown", 6 reply,
--       7 first pause ms, 8 longest pause ms, 9 dead after ms, 10 pause of the dead ms
-- Reply: {"ok", now_ms, "applied" | "already" | "conflict", state, won_at_ms, reply|false}
--        or {"ok", now_ms, "marked_dead", state, won_at_ms, reply|false, tries, age ms}: recorded, and marked with it
--        or {"ok", now_ms, "unknown_win"}

local why = barred_or_stranger()
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
  count_win(win, 'h', 'a')
  redis.call('HSET', BODIES, id .. ':r', reply)
  redis.call('HDEL', BODIES, id .. ':p')
  redis.call('ZREM', DUE, id)
  redis.call('ZREM', DEAD, id)
  note('booked', 'id', id)
else
  if win.first == 0 then
    win.first = now
  end
  local age = math.max(0, now - win.first)
  local marked = redis.call('ZSCORE', DEAD, id)
  local dead = marked or age >= tonumber(ARGV[9])
  local pause = tonumber(ARGV[10])
  if not dead then
    pause = math.min(tonumber(ARGV[7]) * 2 ^ math.min(win.tries, 20), tonumber(ARGV[8]))
  end
  win.tries = win.tries + 1
  win.word = said == 'queued' and 'q' or 'u'
  redis.call('HSET', WINS, id, format_win(win))
  if said == 'queued' then
    redis.call('HSETNX', BODIES, id .. ':r', reply)
  end
  redis.call('ZADD', DUE, int(now + pause), id)
  if dead and not marked then
    redis.call('ZADD', DEAD, int(now), id)
    local known = told(win, id)
    return { 'ok', now, 'marked_dead', known[1], known[2], known[3], win.tries, age }
  end
end
return answer('applied')

#!lua flags=allow-oom
-- Gives a win's units back, once per request id, on the order service's remembered word. A full server must still let wins finish.
--
-- ARGV: 1 epoch, 2 run id, 3 not_after_ms, 4 request id, 5 cause ("refused" | "void" | "ended"), 6 reason,
--       7 ledger short (0|1), 8 returning delay ms
-- Reply: as settle.lua

local why = barred_or_stranger()
if why then
  return { why, now }
end
local id, cause = ARGV[4], ARGV[5]
local found = redis.call('HGET', WINS, id)
if not found then
  return { 'ok', now, 'unknown_win' }
end
local win = parse_win(found)

local function answer(outcome)
  return { 'ok', now, outcome, unpack(told(win, id)) }
end

if win.state == 'a' and cause == 'refused' then
  return answer('conflict')
end
if win.state ~= 'h' and win.state ~= 'a' then
  return answer('already')
end

-- The win first: should the rest abort, units are stranded, never given back twice.
local from = win.state
win.state = 'r:' .. cause .. ':' .. ARGV[6]
redis.call('HSET', WINS, id, format_win(win))
count_win(win, from, 'r')
redis.call('HDEL', BODIES, id .. ':p')
redis.call('ZREM', DUE, id)
redis.call('ZREM', DEAD, id)
if redis.call('HGET', META, 'rebuy') == '1' then
  local units, keys = string.match(redis.call('HGET', BUYERS, win.user) or '0', '^(%d+)(.*)$')
  redis.call('HSET', BUYERS, win.user, int(math.max(0, tonumber(units) - win.qty)) .. keys)
end
note('released', 'id', id, 'sku', win.sku, 'qty', int(win.qty))

if ARGV[7] == '1' then
  -- Store and ledger disagree: the SKU stops, and units pay off what is below zero before they are kept back.
  local left = tonumber(redis.call('HGET', STOCK, win.sku .. ':left'))
  local debt = math.min(math.max(0, -left), win.qty)
  redis.call('HINCRBY', STOCK, win.sku .. ':left', debt)
  redis.call('HINCRBY', STOCK, win.sku .. ':withheld', win.qty - debt)
  if redis.call('HGET', STOCK, win.sku .. ':stopped') ~= '1' then
    redis.call('HSET', STOCK, win.sku .. ':stopped', 1)
    note('stopped', 'sku', win.sku, 'on', 1)
  end
else
  give_back(win.sku, win.qty, now + tonumber(ARGV[8]))
end
return answer('applied')

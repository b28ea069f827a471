#!lua flags=allow-oom
-- Puts units that have waited long enough on sale, leases overdue deliveries to the caller, and gives those that the order
-- service has kept waiting for too long their dead marks. A full server must still let wins finish.
--
-- ARGV: 1 epoch, 2 run id, 3 not_after_ms, 4 most wins, 5 lease ms, and from a gate for which the order service does not
--       answer 6 dead after ms, 7 pause of the dead ms
-- Reply: {"ok", now_ms, {sku, units, ...}, {request id, win, payload, ...}, {request id marked, ...}}

local why = barred_or_stranger()
if why then
  return { why, now }
end

-- At most so many per call keeps the server responsive; the next call takes the rest.
local MOST_RETURNS = 1000
local on_sale = {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', RETURNING, '-inf', int(now), 'LIMIT', 0, MOST_RETURNS)) do
  local sku, units = string.match(member, '^(%S+) (%d+) %d+$')
  redis.call('ZREM', RETURNING, member)
  redis.call('HINCRBY', STOCK, sku .. ':returning', -tonumber(units))
  redis.call('HINCRBY', STOCK, sku .. ':left', units)
  note('on_sale', 'sku', sku, 'qty', units)
  on_sale[#on_sale + 1] = sku
  on_sale[#on_sale + 1] = units
end

local claimed = {}
local ids = redis.call('ZRANGEBYSCORE', DUE, '-inf', int(now), 'LIMIT', 0, ARGV[4])
if #ids > 0 then
  local until_ms, leases, payload_fields = int(now + tonumber(ARGV[5])), {}, {}
  for i, id in ipairs(ids) do
    leases[2 * i - 1], leases[2 * i] = until_ms, id
    payload_fields[i] = id .. ':p'
  end
  redis.call('ZADD', DUE, unpack(leases))
  local wins = redis.call('HMGET', WINS, unpack(ids))
  local payloads = redis.call('HMGET', BODIES, unpack(payload_fields))
  local begun = {}
  for i, id in ipairs(ids) do
    local win = parse_win(wins[i])
    if win.first == 0 then
      win.first = now
      wins[i] = format_win(win)
      begun[#begun + 1], begun[#begun + 2] = id, wins[i]
    end
    claimed[#claimed + 1] = id
    claimed[#claimed + 1] = wins[i]
    claimed[#claimed + 1] = payloads[i] or ''
  end
  if #begun > 0 then
    redis.call('HSET', WINS, unpack(begun))
  end
end

-- With an order service that is down only a few deliveries are made, and most wins would hear of it hours later. Whoever
-- gets a mark is delivered at the pace of the dead, and so makes room here for the next ones.
local MOST_MARKS = 200
local marked, waited = {}, {}
if ARGV[6] then
  waited = redis.call('ZRANGEBYSCORE', DUE, '-inf', int(now - tonumber(ARGV[6])), 'LIMIT', 0, MOST_MARKS)
end
if #waited > 0 then
  local later, marks = {}, {}
  local known = redis.call('ZMSCORE', DEAD, unpack(waited))
  for i, id in ipairs(waited) do
    later[2 * i - 1], later[2 * i] = int(now + tonumber(ARGV[7])), id
    if not known[i] then
      marks[#marks + 1], marks[#marks + 2] = int(now), id
      marked[#marked + 1] = id
    end
  end
  redis.call('ZADD', DUE, unpack(later))
  if #marks > 0 then
    redis.call('ZADD', DEAD, unpack(marks))
  end
end

-- No key may expire while somebody waits for an order.
if redis.call('ZCARD', DUE) > 1 then
  local retention = tonumber(redis.call('HGET', META, 'retention'))
  if redis.call('PTTL', META) < retention / 2 then
    for _, key in ipairs(KEYS) do
      redis.call('PEXPIRE', key, int(retention))
    end
  end
end
return { 'ok', now, on_sale, claimed, marked }

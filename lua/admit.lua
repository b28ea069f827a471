#!lua
-- Judges a batch of attempts in order and takes the stock of those that win. The heart of the gate.
--
-- ARGV: 1 epoch, 2 run id, 3 not_after_ms, 4 first delivery lease ms,
--       then per attempt: request id, user, sku, qty, key, fingerprint, may_win (0|1), payload
-- Reply: {"ok", now_ms, verdict, ...}, a verdict being {state, won_at_ms, reply|false} for a known id, else a number:
--        2 conflict, 3 not known, 4 paused, 5 suspect, 6 not started, 7 ended, 8 no such sku, 9 sku stopped,
--        10 at limit, 11 sold out, 12 won
-- The order of the numbers is the order of precedence.

local CONFLICT, NOT_KNOWN, PAUSED, SUSPECT, NOT_STARTED, ENDED = 2, 3, 4, 5, 6, 7
local NO_SUCH_SKU, SKU_STOPPED, AT_LIMIT, SOLD_OUT, WON = 8, 9, 10, 11, 12
local FIRST, FIELDS = 5, 8

local why, suspect = barred()
if why then
  return { why, now }
end

-- Everything the batch is judged on, in one read per key.
local ids, users, stock_fields, sku_seen = {}, {}, {}, {}
for i = FIRST, #ARGV, FIELDS do
  ids[#ids + 1] = ARGV[i]
  users[#users + 1] = ARGV[i + 1]
  local sku = ARGV[i + 2]
  if not sku_seen[sku] then
    sku_seen[sku] = true
    for _, field in ipairs({ ':left', ':stopped', ':hn', ':hu' }) do
      stock_fields[#stock_fields + 1] = sku .. field
    end
  end
end
local meta = redis.call('HMGET', META, 'paused', 'starts_at', 'ends_at', 'per_user_limit')
local paused = meta[1] == '1'
local starts_at, ends_at, limit = tonumber(meta[2]), tonumber(meta[3]), tonumber(meta[4])
local known_wins = redis.call('HMGET', WINS, unpack(ids))
local known_buyers = redis.call('HMGET', BUYERS, unpack(users))
local stock_values = redis.call('HMGET', STOCK, unpack(stock_fields))

local wins, left, stopped, buyers, held_wins, held_units = {}, {}, {}, {}, {}, {}
for i, id in ipairs(ids) do
  wins[id] = known_wins[i] or wins[id]
  buyers[users[i]] = known_buyers[i] or '0'
end
for i = 1, #stock_fields, 4 do
  local sku = string.sub(stock_fields[i], 1, -6)
  left[sku] = tonumber(stock_values[i] or nil)
  stopped[sku] = stock_values[i + 1] == '1'
  held_wins[sku], held_units[sku] = tonumber(stock_values[i + 2] or nil), tonumber(stock_values[i + 3] or nil)
end

local verdicts = { 'ok', now }
local taken, new_wins, new_bodies, new_due, new_items, new_buyers = {}, {}, {}, {}, {}, {}
local first_due = int(now + tonumber(ARGV[4]))

local function judge(i)
  local id, user, sku, qty = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  local known = wins[id]
  if known then
    local win = parse_win(known)
    if win.sku ~= sku or win.qty ~= qty or win.fingerprint ~= ARGV[i + 5] then
      return CONFLICT
    end
    return told(win, id)
  end
  if ARGV[i + 6] ~= '1' then return NOT_KNOWN end
  if paused then return PAUSED end
  if suspect then return SUSPECT end
  if now < starts_at then return NOT_STARTED end
  if now >= ends_at then return ENDED end
  if not left[sku] then return NO_SUCH_SKU end
  if stopped[sku] then return SKU_STOPPED end
  local units, keys = string.match(buyers[user], '^(%d+)(.*)$')
  if tonumber(units) + qty > limit then return AT_LIMIT end
  if left[sku] < qty then return SOLD_OUT end

  left[sku] = left[sku] - qty
  held_wins[sku], held_units[sku] = held_wins[sku] + 1, held_units[sku] + qty
  taken[sku] = true
  buyers[user] = int(tonumber(units) + qty) .. keys .. ' ' .. ARGV[i + 4]
  new_buyers[user] = true
  wins[id] = table.concat({ 'h', user, sku, ARGV[i + 3], int(now), ARGV[i + 4], ARGV[i + 5], '0', '0', '-' }, ' ')
  new_wins[#new_wins + 1] = id
  new_wins[#new_wins + 1] = wins[id]
  new_bodies[#new_bodies + 1] = id .. ':p'
  new_bodies[#new_bodies + 1] = ARGV[i + 7]
  new_due[#new_due + 1] = first_due
  new_due[#new_due + 1] = id
  new_items[#new_items + 1] = id .. ' ' .. ARGV[i + 4] .. ' ' .. sku .. ' ' .. ARGV[i + 3]
  return WON
end

for i = FIRST, #ARGV, FIELDS do
  verdicts[#verdicts + 1] = judge(i)
end

-- Stock first: should the rest abort, units are stranded, never given away twice.
if #new_wins > 0 then
  local stock = {}
  for sku in pairs(taken) do
    for field, number in pairs({ [':left'] = left[sku], [':hn'] = held_wins[sku], [':hu'] = held_units[sku] }) do
      stock[#stock + 1] = sku .. field
      stock[#stock + 1] = int(number)
    end
  end
  local bought = {}
  for user in pairs(new_buyers) do
    bought[#bought + 1] = user
    bought[#bought + 1] = buyers[user]
  end
  redis.call('HSET', STOCK, unpack(stock))
  redis.call('HSET', BUYERS, unpack(bought))
  redis.call('HSET', WINS, unpack(new_wins))
  redis.call('HSET', BODIES, unpack(new_bodies))
  redis.call('ZADD', DUE, unpack(new_due))
  note('won', 'items', table.concat(new_items, '\n'))
end
return verdicts

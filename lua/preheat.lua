#!lua
-- Creates an activity's store if there is none; never touches one that exists. Only on the run that the caller saw empty,
-- and only in time: a call that is repeated or arrives late could otherwise fill a server that has lost the sale meanwhile.
--
-- ARGV: 1 epoch, 2 run id seen, 3 not_after_ms, 4 canonical terms, 5 starts_at_ms, 6 ends_at_ms, 7 per-user limit,
--       8 rebuy (0|1), 9 retention_ms, then per SKU, in the order of the terms: name, total
-- Reply: {"ok", now_ms, "created" | "already" | "differs" | "incomplete"}

local present = keys_present()
if present > 0 then
  if present < KEY_COUNT then
    return { 'ok', now, 'incomplete' }
  end
  return { 'ok', now, redis.call('HGET', META, 'terms') == ARGV[4] and 'already' or 'differs' }
end
local run = server_run()
if ARGV[2] ~= run then
  return { 'suspect', now }
end
if now > tonumber(ARGV[3]) then
  return { 'late', now }
end

local skus, stock = {}, {}
for i = 10, #ARGV, 2 do
  local sku, total = ARGV[i], ARGV[i + 1]
  skus[#skus + 1] = sku
  for _, field in ipairs({ ':total', ':left' }) do
    stock[#stock + 1], stock[#stock + 2] = sku .. field, total
  end
  for _, field in ipairs({ ':returning', ':withheld', ':stopped', ':hn', ':hu', ':an', ':au', ':rn', ':ru' }) do
    stock[#stock + 1], stock[#stock + 2] = sku .. field, 0
  end
end

redis.call('HSET', META, 'epoch', ARGV[1], 'run_id', run, 'terms', ARGV[4], 'starts_at', ARGV[5],
  'ends_at', ARGV[6], 'per_user_limit', ARGV[7], 'rebuy', ARGV[8], 'retention', ARGV[9],
  'skus', table.concat(skus, ' '), 'paused', 0, 'returning_seq', 0)
redis.call('HSET', STOCK, unpack(stock))
for _, hash in ipairs({ BUYERS, WINS, BODIES, GATES }) do
  redis.call('HSET', hash, '', '')
end
for _, zset in ipairs({ DUE, RETURNING, DEAD }) do
  redis.call('ZADD', zset, '+inf', '')
end
note('preheated')

local expires_at = math.max(tonumber(ARGV[6]), now) + tonumber(ARGV[9])
for _, key in ipairs(KEYS) do
  redis.call('PEXPIREAT', key, int(expires_at))
end
return { 'ok', now, 'created' }

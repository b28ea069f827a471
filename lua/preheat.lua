#!lua
-- Creates an activity's store if there is none; never touches one that exists.
--
-- ARGV: 1 epoch, 2 canonical terms, 3 starts_at_ms, 4 ends_at_ms, 5 per-user limit, 6 rebuy (0|1), 7 retention_ms,
--       then per SKU, in the order of the terms: name, total
-- Reply: {"created" | "already" | "differs" | "incomplete", now_ms}

local present = keys_present()
if present > 0 then
  if present < KEY_COUNT then
    return { 'incomplete', now }
  end
  return { redis.call('HGET', META, 'terms') == ARGV[2] and 'already' or 'differs', now }
end

local skus, stock = {}, {}
for i = 8, #ARGV, 2 do
  local sku, total = ARGV[i], ARGV[i + 1]
  skus[#skus + 1] = sku
  for _, field in ipairs({ ':total', ':left' }) do
    stock[#stock + 1], stock[#stock + 2] = sku .. field, total
  end
  for _, field in ipairs({ ':returning', ':withheld', ':stopped', ':hn', ':hu', ':an', ':au', ':rn', ':ru' }) do
    stock[#stock + 1], stock[#stock + 2] = sku .. field, 0
  end
end

redis.call('HSET', META, 'epoch', ARGV[1], 'run_id', server_run(), 'terms', ARGV[2], 'starts_at', ARGV[3],
  'ends_at', ARGV[4], 'per_user_limit', ARGV[5], 'rebuy', ARGV[6], 'retention', ARGV[7],
  'skus', table.concat(skus, ' '), 'paused', 0, 'returning_seq', 0)
redis.call('HSET', STOCK, unpack(stock))
for _, hash in ipairs({ BUYERS, WINS, BODIES, GATES }) do
  redis.call('HSET', hash, '', '')
end
for _, zset in ipairs({ DUE, RETURNING, DEAD }) do
  redis.call('ZADD', zset, '+inf', '')
end
note('preheated')

local expires_at = math.max(tonumber(ARGV[4]), now) + tonumber(ARGV[7])
for _, key in ipairs(KEYS) do
  redis.call('PEXPIREAT', key, int(expires_at))
end
return { 'created', now }

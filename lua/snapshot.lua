#!lua flags=no-writes
-- One atomic picture for audits: terms, stock, units in wins by state, users above the limit.
--
-- ARGV: none
-- Reply: {"ok", meta, stock, deliveries waiting, {sku, state, wins, units, ...}, {user, units, ...}}, or {"not_preheated"}

if keys_present() < KEY_COUNT then
  return { 'not_preheated' }
end
local MOST_USERS = 100

local sums = {}
for _, text in ipairs(redis.call('HVALS', WINS)) do
  if text ~= '' then
    local state, sku, qty = string.match(text, '^(%a)%S* %S+ (%S+) (%d+) ')
    local sum = sums[sku .. ' ' .. state] or { 0, 0 }
    sums[sku .. ' ' .. state] = { sum[1] + 1, sum[2] + tonumber(qty) }
  end
end
local wins = {}
for name, sum in pairs(sums) do
  local sku, state = string.match(name, '^(%S+) (%a)$')
  for _, value in ipairs({ sku, state, sum[1], sum[2] }) do
    wins[#wins + 1] = value
  end
end

local limit = tonumber(redis.call('HGET', META, 'per_user_limit'))
local above = {}
local buyers = redis.call('HGETALL', BUYERS)
for i = 1, #buyers, 2 do
  local units = tonumber(string.match(buyers[i + 1], '^%d+') or 0)
  if units > limit and #above < 2 * MOST_USERS then
    above[#above + 1] = buyers[i]
    above[#above + 1] = units
  end
end
return {
  'ok', redis.call('HGETALL', META), redis.call('HGETALL', STOCK), redis.call('ZCARD', DUE) - 1, wins, above,
}

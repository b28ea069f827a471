#!lua
-- Stops one SKU (no attempt for it wins) or starts it again; below zero it stays stopped.
--
-- ARGV: 1 epoch, 2 run id, 3 not_after_ms, 4 sku, 5 stopped (0|1)
-- Reply: {"ok", now_ms, "applied" | "already" | "no_such_sku" | "below_zero", 0}

local why = barred_or_suspect()
if why then
  return { why, now }
end
local sku = ARGV[4]
local stock = redis.call('HMGET', STOCK, sku .. ':stopped', sku .. ':left')
if not stock[1] then
  return { 'ok', now, 'no_such_sku', 0 }
end
if stock[1] == ARGV[5] then
  return { 'ok', now, 'already', 0 }
end
if ARGV[5] == '0' and tonumber(stock[2]) < 0 then
  return { 'ok', now, 'below_zero', 0 }
end
redis.call('HSET', STOCK, sku .. ':stopped', ARGV[5])
note('stopped', 'sku', sku, 'on', ARGV[5])
return { 'ok', now, 'applied', 0 }

#!lua
-- Sets the units offered of one SKU, from the number the operator saw to the one wanted.
--
-- ARGV: 1 epoch, 2 run id, 3 not_after_ms, 4 sku, 5 from, 6 to, 7 returning delay ms
-- Reply: {"ok", now_ms, "applied" | "already" | "no_such_sku" | "total_is" | "only_left", the present number}

local why = barred_or_suspect()
if why then
  return { why, now }
end
local sku, from, to = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local stock = redis.call('HMGET', STOCK, sku .. ':total', sku .. ':left')
if not stock[1] then
  return { 'ok', now, 'no_such_sku', 0 }
end
local total, left = tonumber(stock[1]), tonumber(stock[2])
if total == to then
  return { 'ok', now, 'already', total }
end
if total ~= from then
  return { 'ok', now, 'total_is', total }
end
local delta = to - from
if delta < 0 and left < -delta then
  return { 'ok', now, 'only_left', left }
end
if delta < 0 then
  redis.call('HSET', STOCK, sku .. ':total', int(to), sku .. ':left', int(left + delta))
else
  redis.call('HSET', STOCK, sku .. ':total', int(to))
  give_back(sku, delta, now + tonumber(ARGV[7]))
end
note('total', 'sku', sku, 'delta', int(delta))
return { 'ok', now, 'applied', to }

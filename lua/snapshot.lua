#!lua flags=no-writes
-- One atomic picture for audits: terms, stock with the sums of wins. However many wins there are, it costs the same.
--
-- ARGV: none
-- Reply: {"ok", meta, stock, deliveries waiting, dead letters}, or {"not_preheated"}; meta and stock as HGETALL

if keys_present() < KEY_COUNT then
  return { 'not_preheated' }
end
return {
  'ok', redis.call('HGETALL', META), redis.call('HGETALL', STOCK),
  redis.call('ZCARD', DUE) - 1, redis.call('ZCARD', DEAD) - 1,
}

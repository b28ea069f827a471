#!lua
-- What every script of an activity begins with. The loader puts this text after the script's own first line.
--
-- KEYS, the same ten for every script, all in one slot by their hash tag:
--   1 meta       hash    epoch, run_id, terms and their parts, paused, returning_seq; barred: "suspect" once a poll was
--                        answered under another run, "fenced" once one found a key missing; nothing takes it away
--   2 stock      hash    <sku>:total, <sku>:left, <sku>:returning, <sku>:withheld, <sku>:stopped, and per state of a win
--                        (h, a, r) <sku>:<state>n and <sku>:<state>u: how many wins are in it, and their units
--   3 buyers     hash    user -> "<units> <key> <key> ..."
--   4 wins       hash    request id -> "<state> <user> <sku> <qty> <won_at_ms> <key> <fingerprint> <tries> <first> <word>"
--                        state: h held, a accepted, r:<cause>:<reason> released; first: when its first delivery began,
--                        ms, 0 if not known; word: the last one short of a final one, q queued, u unknown, - none
--   5 bodies     hash    <request id>:p -> payload (until booked or released), <request id>:r -> kept reply
--   6 due        zset    request id, scored by when to deliver it (again), ms
--   7 returning  zset    "<sku> <units> <n>", scored by when the units go on sale, ms
--   8 journal    stream  every change of stock, in order
--   9 gates      hash    gate id -> "<last poll ms> <epoch> <run id>"
--  10 dead       zset    request id, scored by when it got its dead mark, ms; only wins in `due`
-- Preheat leaves one empty member in each of buyers, wins, bodies, due, returning, gates and dead, so that all ten keys
-- exist from then on: a missing one shows that the store lost something.
--
-- Replies of changing scripts: {"ok", now_ms, ...}, or {why, now_ms} if nothing was changed, why being one of
-- not_preheated, fenced, late, suspect.

local META, STOCK, BUYERS, WINS, BODIES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local DUE, RETURNING, JOURNAL, GATES, DEAD = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local KEY_COUNT = 10

-- The one clock that judges a sale. Read once: it does not move while a script runs.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Whole numbers as text; '..' alone would keep 14 digits only.
local function int(number)
  return string.format('%.0f', number)
end

-- The run of the very server that executes this; a client that reconnected by itself could carry an old one.
local function server_run()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
end

local function keys_present()
  return redis.call('EXISTS', META, STOCK, BUYERS, WINS, BODIES, DUE, RETURNING, JOURNAL, GATES, DEAD)
end

-- Compares what the caller believes with what is stored. ARGV: 1 epoch, 2 run id vouched for, 3 not_after_ms.
-- Returns why the call is barred, or nil and whether the store is suspect.
local function barred()
  local present = keys_present()
  if present == 0 then
    return 'not_preheated'
  end
  if present < KEY_COUNT then
    return 'fenced'
  end
  local meta = redis.call('HMGET', META, 'epoch', 'run_id', 'barred')
  if meta[1] ~= ARGV[1] or meta[3] == 'fenced' then
    return 'fenced'
  end
  if now > tonumber(ARGV[3]) then
    return 'late'
  end
  local run = server_run()
  return nil, meta[3] == 'suspect' or meta[2] ~= run or ARGV[2] ~= run
end

-- The same for scripts that do nothing while the store is suspect.
local function barred_or_suspect()
  local why, suspect = barred()
  return why or (suspect and 'suspect') or nil
end

-- The same for scripts that bring wins to their end. What they do is the order service's word, which it repeats, so they
-- go on while the store is suspect; but only for a caller that knows which run it speaks to.
local function barred_or_stranger()
  return (barred()) or (ARGV[2] ~= server_run() and 'suspect') or nil
end

-- Reads a value of `wins`.
local function parse_win(text)
  local state, user, sku, qty, won_at, key, fingerprint, tries, first, word =
    string.match(text, '^(%S+) (%S+) (%S+) (%d+) (%d+) (%S+) (%x+) (%d+) (%d+) (%S)$')
  return {
    state = state, user = user, sku = sku, qty = tonumber(qty), won_at = won_at, key = key,
    fingerprint = fingerprint, tries = tonumber(tries), first = tonumber(first), word = word,
  }
end

local function format_win(win)
  return table.concat({
    win.state, win.user, win.sku, int(win.qty), win.won_at, win.key, win.fingerprint, int(win.tries), int(win.first),
    win.word,
  }, ' ')
end

-- How a win is told: {state, won_at_ms, kept reply or false}.
local function told(win, id)
  return { win.state, win.won_at, redis.call('HGET', BODIES, id .. ':r') }
end

-- Moves a win from one state (h, a) to another (a, r) in its SKU's sums.
local function count_win(win, from, to)
  local fields = { win.sku .. ':' .. from .. 'n', win.sku .. ':' .. from .. 'u',
                   win.sku .. ':' .. to .. 'n', win.sku .. ':' .. to .. 'u' }
  local sums = redis.call('HMGET', STOCK, unpack(fields))
  redis.call('HSET', STOCK, fields[1], int(sums[1] - 1), fields[2], int(sums[2] - win.qty),
    fields[3], int(sums[3] + 1), fields[4], int(sums[4] + win.qty))
end

-- Puts units on their way to `left`.
local function give_back(sku, units, on_sale_at)
  redis.call('HINCRBY', STOCK, sku .. ':returning', units)
  local n = redis.call('HINCRBY', META, 'returning_seq', 1)
  redis.call('ZADD', RETURNING, int(on_sale_at), sku .. ' ' .. int(units) .. ' ' .. int(n))
end

-- Adds to the journal. The fields after `op` belong to it.
local function note(op, ...)
  redis.call('XADD', JOURNAL, '*', 'at', int(now), 'op', op, ...)
end

#!lua flags=allow-oom
-- Makes wins that wait for the order service due now. A full server must still let wins finish.
--
-- ARGV: 1 epoch, 2 run id, 3 not_after_ms, then request ids
-- Reply: {"ok", now_ms, "due" | "unknown_win" | the state of a win that has its final word, ...}, one per id

local why = barred_or_stranger()
if why then
  return { why, now }
end
local answers, due = { 'ok', now }, {}
for i, found in ipairs(redis.call('HMGET', WINS, unpack(ARGV, 4))) do
  local state = found and parse_win(found).state
  if state == 'h' then
    due[#due + 1], due[#due + 2] = int(now), ARGV[i + 3]
    state = 'due'
  end
  answers[#answers + 1] = state or 'unknown_win'
end
if #due > 0 then
  redis.call('ZADD', DUE, unpack(due))
end
return answers

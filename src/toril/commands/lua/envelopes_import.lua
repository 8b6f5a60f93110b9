--[[
  Takes in jobs that come from another queue, each once.

  Whoever moves jobs may die after they arrived here and before they left there; then they are sent again. The book of
  arrivals recognises them.

  KEYS   1 list or stream, 2 scheduled, 3 arrivals
  ARGV   1 kind (list | stream), 2 now (ms), 3 arrivals before this time (ms) are forgotten,
         then name in the book, due (ms, or "" for now) and envelope of each job
  Reply  how many were new
]]
--@own push envelope_push
redis.call("ZREMRANGEBYSCORE", KEYS[3], "-inf", ARGV[3])
local arrived = 0
for at = 4, #ARGV, 3 do
  local name, due, envelope = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if redis.call("ZADD", KEYS[3], "NX", ARGV[2], name) == 1 then
    push(KEYS, ARGV, ARGV[1], KEYS[1], KEYS[2], due, envelope)
    arrived = arrived + 1
  end
end
return arrived

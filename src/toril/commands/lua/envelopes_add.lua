--[[
  Adds a batch of envelopes to a list or a stream queue, those that are due later to its sorted set.

  A producer whose reply was lost sends the same call again under the same number: nothing is added twice.

  KEYS   1 list or stream, 2 scheduled, 3 ledger of the producer
  ARGV   1 kind (list | stream), 2 number of the call, 3 ledger's life (ms), then due (ms, or "" for now) and envelope
         for each job
  Reply  how many were added; 0 when the call had run before
]]
--@own push envelope_push
-- More calls than a producer ever has in flight.
local REMEMBERED = 1000

if redis.call("ZSCORE", KEYS[3], ARGV[2]) then
  return 0
end
local added = 0
for at = 4, #ARGV, 2 do
  push(KEYS, ARGV, ARGV[1], KEYS[1], KEYS[2], ARGV[at], ARGV[at + 1])
  added = added + 1
end
redis.call("ZADD", KEYS[3], ARGV[2], ARGV[2])
redis.call("ZREMRANGEBYRANK", KEYS[3], 0, -REMEMBERED - 1)
redis.call("PEXPIRE", KEYS[3], ARGV[3])
return added

--[[
  Adds a batch of envelopes to a list or a stream queue; those that are due later go to its sorted set.

  A producer whose reply was lost sends the same call again under the same sequence number: nothing is added twice.

  jobs    the list or stream
  ledger  sequence numbers of the producer's calls
  kind    list or stream
  due_ms  "" for now
  Reply   how many were added; 0 when the call had run before
]]
--@keys jobs scheduled ledger
--@args kind sequence ledger_ms
--@each due_ms envelope
--@own push envelope_push
-- More calls than a producer ever has in flight.
local REMEMBERED = 1000

if redis.call("ZSCORE", ledger, sequence) then
  return 0
end
local added = 0
for at = FIRST_ITEM, #ARGV, ITEM_SIZE do
  push(KEYS, ARGV, kind, jobs, scheduled, ARGV[at + DUE_MS], ARGV[at + ENVELOPE])
  added = added + 1
end
redis.call("ZADD", ledger, sequence, sequence)
redis.call("ZREMRANGEBYRANK", ledger, 0, -REMEMBERED - 1)
redis.call("PEXPIRE", ledger, ledger_ms)
return added

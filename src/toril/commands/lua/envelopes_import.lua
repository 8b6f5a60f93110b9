--[[
  Adds jobs that come from another queue, each once.

  A bridge that ends between adding jobs here and removing them there sends them again. The sorted set of arrivals
  recognises them by name.

  jobs              the list or stream
  kind              list or stream
  forget_before_ms  arrivals before this time are removed
  due_ms            "" for now
  Reply             how many were new
]]
--@keys jobs scheduled arrivals
--@args kind now_ms forget_before_ms
--@each name due_ms envelope
--@own push envelope_push
redis.call("ZREMRANGEBYSCORE", arrivals, "-inf", forget_before_ms)
local added = 0
for at = FIRST_ITEM, #ARGV, ITEM_SIZE do
  if redis.call("ZADD", arrivals, "NX", now_ms, ARGV[at + NAME]) == 1 then
    push(KEYS, ARGV, kind, jobs, scheduled, ARGV[at + DUE_MS], ARGV[at + ENVELOPE])
    added = added + 1
  end
end
return added

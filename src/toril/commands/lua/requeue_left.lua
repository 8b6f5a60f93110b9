--[[
  Adds a job that was stored to follow another one (`parts/add_deduplicated.lua`), when that one has ended without adding
  it: a worker of BullMQ 5 does not know of such jobs.

  Reply  the id of the job that was added, or nothing
]]
--@keys deduplication_key
--@args base deduplication_id now_ms
--@own requeue_next requeue_next
local holder = redis.call("GET", deduplication_key)
if holder then
  local fields = redis.call("HMGET", base .. holder, "name", "finishedOn")
  if fields[1] and not fields[2] then
    return
  end
end
return requeue_next(KEYS, ARGV, base, deduplication_id, now_ms)

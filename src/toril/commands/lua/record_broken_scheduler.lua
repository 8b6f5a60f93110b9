--[[
  Records that the job after the current one of a scheduler could not be made. A scheduler that does not exist any more,
  or that has a later job, is left alone.

  job_id  the scheduler's current job
  note    packed
  Reply   1 when it was recorded
]]
--@keys repeat_set broken_schedulers
--@args scheduler_id job_id note
local due = redis.call("ZSCORE", repeat_set, scheduler_id)
if due and "repeat:" .. scheduler_id .. ":" .. string.format("%.0f", tonumber(due)) == job_id then
  redis.call("HSET", broken_schedulers, scheduler_id, note)
  return 1
end
return 0

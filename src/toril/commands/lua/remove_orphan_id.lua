--[[
  Removes the id of a job without a hash from the lists and sets in which jobs wait.

  job    the job's hash
  Reply  1 when the id was there; 0 when it was not, or the job has a hash
]]
--@keys wait paused prioritized delayed job
--@args job_id
if redis.call("EXISTS", job) == 1 then
  return 0
end
local removed = 0
for _, list in ipairs({wait, paused}) do
  removed = removed + redis.call("LREM", list, 0, job_id)
end
for _, set in ipairs({prioritized, delayed}) do
  removed = removed + redis.call("ZREM", set, job_id)
end
return removed > 0 and 1 or 0

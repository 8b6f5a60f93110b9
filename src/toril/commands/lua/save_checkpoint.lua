--[[
  Stores the checkpoint of a running job in the field of its result: a result replaces it, a retry of a completed job
  removes it, and a retry of a failed one keeps it, in the scripts of all clients.

  Only the worker that has the job may store one. Its lock may have expired, if no other worker can have had the job since:
  it is active, and was not fetched again.

  started  the field `ats` when the worker fetched the job
  Reply    1, or the negative code of upstream's scripts: -1 no job, -2 no lock, -6 the lock of another
]]
--@keys job lock active
--@args job_id token value started
local NO_JOB, NO_LOCK, OTHER_LOCK = -1, -2, -6
if redis.call("EXISTS", job) == 0 then
  return NO_JOB
end
local owner = redis.call("GET", lock)
if owner and owner ~= token then
  return OTHER_LOCK
end
if not owner and (redis.call("HGET", job, "ats") ~= started or not redis.call("LPOS", active, job_id)) then
  return NO_LOCK
end
redis.call("HSET", job, "returnvalue", value)
return 1

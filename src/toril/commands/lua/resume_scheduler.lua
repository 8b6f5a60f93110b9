--[[
  Makes the next job of a broken scheduler by the official script, and removes the scheduler from the broken ones.

  job     the hash of the scheduler's last job
  job_id  the scheduler's last job
  The other keys and arguments, and the reply, are those of updateJobScheduler.
]]
--@keys repeat_set delayed wait paused meta prioritized marker id_counter events pc job active broken_schedulers
--@args next_ms scheduler_id data job_options now_ms base job_id
--@official update_scheduler updateJobScheduler

local existed = redis.call("EXISTS", job) == 1
local next_id = update_scheduler(KEYS, ARGV)
if not existed then
  redis.call("DEL", job) -- the official script writes the next id into the last job, even when that does not exist
end
local note = redis.call("HGET", broken_schedulers, scheduler_id)
if note and cmsgpack.unpack(note)["job"] == job_id then
  redis.call("HDEL", broken_schedulers, scheduler_id)
end
return next_id

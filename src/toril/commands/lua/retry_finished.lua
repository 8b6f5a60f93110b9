--[[
  Moves a finished job to wait by the official script and, as BullMQ 6 does, counts its attempts from the beginning if
  asked.

  reset_attempts_made, reset_attempts_started  "1" to forget the attempts that ended, and that began
  The other keys and arguments, and the reply, are those of reprocessJob.
]]
--@keys job events source wait meta paused active marker
--@args job_id push_command property state reset_attempts_made reset_attempts_started
--@official reprocess reprocessJob
local kind = redis.call("TYPE", job).ok
if kind ~= "hash" and kind ~= "none" then -- the official script would raise after it has moved the id
  return redis.error_reply("WRONGTYPE the key of the job holds another type than a hash")
end
local code = reprocess(KEYS, ARGV)
if code == 1 then
  if reset_attempts_made == "1" then
    redis.call("HDEL", job, "atm", "attemptsMade")
  end
  if reset_attempts_started == "1" then
    redis.call("HDEL", job, "ats")
  end
end
return code

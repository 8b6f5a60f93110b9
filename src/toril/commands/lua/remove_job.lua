--[[
  Removes a job by the official script, and what was stored to follow it.

  Keys, arguments and reply are those of removeJob.
]]
--@keys job repeat_set
--@args job_id children base
--@official remove removeJob
--@own drop_next drop_next
local drop = drop_next(KEYS, ARGV, base, {job_id})
local reply = remove(KEYS, ARGV)
drop()
return reply

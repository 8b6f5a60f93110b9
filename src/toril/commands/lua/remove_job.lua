--[[
  Removes a job by the official script, and what was stored to follow it. Where that script raises, because keys of the job
  are not what it expects, the id is taken out of all lists and sets, and the job's own keys are removed.

  Keys, arguments and reply are those of removeJob.
]]
--@keys job repeat_set
--@args job_id children base
--@official remove removeJob
--@own drop_next drop_next
--@own is_data_error is_data_error

local LOCKED, REMOVED = 0, 1
local BELONGS = {"", ":logs", ":dependencies", ":processed", ":failed", ":unsuccessful"}

local function remove_by_keys()
  if redis.call("EXISTS", job .. ":lock") == 1 then
    return LOCKED
  end
  for _, list in ipairs({"wait", "paused", "active"}) do
    redis.call("LREM", base .. list, 0, job_id)
  end
  for _, set in ipairs({"delayed", "prioritized", "completed", "failed", "waiting-children"}) do
    redis.call("ZREM", base .. set, job_id)
  end
  for _, suffix in ipairs(BELONGS) do
    redis.call("DEL", job .. suffix)
  end
  return REMOVED
end

local drop = drop_next(KEYS, ARGV, base, {job_id})
local ok, reply = pcall(remove, KEYS, ARGV)
if not ok then
  if not is_data_error(KEYS, ARGV, reply) then
    error(reply, 0)
  end
  reply = remove_by_keys()
end
drop()
return reply

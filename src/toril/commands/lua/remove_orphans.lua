--[[
  Removes jobs that are in no list and in no set, with all that belongs to them.

  limit   how many to remove at most
  job_id  a job that may be one
  Reply   the ids that were removed
]]
--@keys completed failed delayed active wait paused waiting_children prioritized
--@args base limit
--@each job_id
--@official state_of getStateV2

local BELONGS = {":lock", ":logs", ":dependencies", ":processed", ":failed", ":unsuccessful"}
local removed = {}
for at = FIRST_ITEM, #ARGV, ITEM_SIZE do
  local id = ARGV[at + JOB_ID]
  local job = base .. id
  local fields = redis.pcall("HMGET", job, "name", "timestamp")
  local is_job = not fields.err and fields[1] and fields[2] and redis.call("EXISTS", job .. ":lock") == 0
  if #removed < tonumber(limit) and is_job and state_of(KEYS, {id}) == "unknown" then
    redis.call("DEL", job)
    for _, suffix in ipairs(BELONGS) do
      redis.call("DEL", job .. suffix)
    end
    removed[#removed + 1] = id
  end
end
return removed

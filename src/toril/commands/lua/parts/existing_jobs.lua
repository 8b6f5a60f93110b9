--[[
  Part of `add_jobs.lua` and `add_flow.lua`: replaces the key of each job that existed by the job's hash. Ledgers hold the
  key only, because a hash may be large.
]]
local replies = ...
for _, reply in ipairs(replies) do
  if type(reply) == "table" and reply[2] then
    local hash = redis.pcall("HGETALL", reply[2])
    reply[2] = hash.err and {} or hash
  end
end
return replies

--[[
  Part of `add_jobs.lua` and `add_flow.lua`: puts the hash of each job that existed in the place of its key. Ledgers hold the
  key only: a hash may be large.
]]
local replies = ...
for _, reply in ipairs(replies) do
  if type(reply) == "table" and reply[2] then
    local hash = redis.pcall("HGETALL", reply[2])
    reply[2] = hash.err and {} or hash
  end
end
return replies

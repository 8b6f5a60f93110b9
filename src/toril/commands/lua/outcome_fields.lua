--[[
  Reads what the outcome of an attempt depends on, of many jobs. Changes nothing.

  active        names the slot of the queue
  each: job_id  a job
  Reply         for each job the values of `opts`, `atm`, `attemptsMade` and `stacktrace`; none if it is no hash
]]
--@keys active
--@args base
--@each job_id
local found = {}
for at = FIRST_ITEM, #ARGV do
  local values = redis.pcall("HMGET", base .. ARGV[at], "opts", "atm", "attemptsMade", "stacktrace")
  found[#found + 1] = values.err and {} or values
end
return found

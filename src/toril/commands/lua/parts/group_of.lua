--[[
  Part of the scripts that know the groups of jobs: returns the group of a job, or nothing if it has none.
]]
--@args base
--@own group_in group_in
local id = ...
return group_in(KEYS, ARGV, redis.pcall("HGET", base .. id, "opts"))

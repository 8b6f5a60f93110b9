--[[
  Makes the next job of a scheduler that was broken, by the official body, and takes it off the list of those.

  KEYS   as updateJobScheduler (11: the last job), then 13 broken schedulers
  ARGV   as updateJobScheduler (2: scheduler's id, 7: the last job)
  Reply  as updateJobScheduler
]]
--@official advance updateJobScheduler

local existed = redis.call("EXISTS", KEYS[11]) == 1
local made = advance(KEYS, ARGV)
if not existed then
  redis.call("DEL", KEYS[11]) -- the body notes the next job in the last one, and thereby makes a job that is gone
end
local note = redis.call("HGET", KEYS[13], ARGV[2])
if note and cmsgpack.unpack(note)["job"] == ARGV[7] then
  redis.call("HDEL", KEYS[13], ARGV[2])
end
return made

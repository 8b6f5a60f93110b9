--[[
  Notes that the job after the current one of a scheduler could not be made. A scheduler that is gone, or has gone on, is
  left alone.

  KEYS   1 repeat, 2 broken schedulers
  ARGV   1 scheduler's id, 2 its current job, 3 packed note
  Reply  1 when it was noted
]]
local due = redis.call("ZSCORE", KEYS[1], ARGV[1])
if due and "repeat:" .. ARGV[1] .. ":" .. string.format("%.0f", tonumber(due)) == ARGV[2] then
  redis.call("HSET", KEYS[2], ARGV[1], ARGV[3])
  return 1
end
return 0

--[[
  Takes the id of a job without data out of the places where jobs wait.

  KEYS   1 wait, 2 paused, 3 prioritized, 4 delayed, 5 the job
  ARGV   1 its id
  Reply  1 when it was there; 0 when it was not, or has data
]]
if redis.call("EXISTS", KEYS[5]) == 1 then
  return 0
end
local removed = 0
for list = 1, 2 do
  removed = removed + redis.call("LREM", KEYS[list], 0, ARGV[1])
end
for set = 3, 4 do
  removed = removed + redis.call("ZREM", KEYS[set], ARGV[1])
end
return removed > 0 and 1 or 0

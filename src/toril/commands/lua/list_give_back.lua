--[[
  Puts jobs of this worker's own list back, when it does not know of them: the reply that brought them was lost.

  KEYS   1 list, 2 this worker's list, 3 this worker's jobs that have not begun
  ARGV   1 start of lock keys, then job id (or "") and envelope of each
  Reply  how many were put back
]]
local returned = 0
for at = 2, #ARGV, 2 do
  if redis.call("LREM", KEYS[2], 1, ARGV[at + 1]) == 1 then
    redis.call("RPUSH", KEYS[1], ARGV[at + 1])
    if ARGV[at] ~= "" then
      redis.call("DEL", ARGV[1] .. ARGV[at])
    end
    returned = returned + 1
  end
end
redis.call("DEL", KEYS[3])
return returned

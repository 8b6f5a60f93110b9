--[[
  Extends the locks of list jobs in hand, and says that their worker lives.

  KEYS   1 consumers
  ARGV   1 start of lock keys, 2 lock duration (ms), 3 now (ms), 4 consumer for reliable pickup, or "",
         then job id and token of each job
  Reply  { the job ids whose lock is another's, those whose lock is gone }
]]
local locks, duration = ARGV[1], ARGV[2]
local lost, gone = {}, {}
for at = 5, #ARGV, 2 do
  local lock = locks .. ARGV[at]
  local holder = redis.call("GET", lock)
  if not holder then
    gone[#gone + 1] = ARGV[at]
  elseif holder ~= ARGV[at + 1] or redis.call("PEXPIRE", lock, duration) ~= 1 then
    lost[#lost + 1] = ARGV[at]
  end
end
if ARGV[4] ~= "" then
  redis.pcall("ZADD", KEYS[1], ARGV[3], ARGV[4])
end
return {lost, gone}

--[[
  Renews the locks of a worker's list jobs and the worker's place among the consumers.

  consumer  for reliable pickup, or ""
  Reply     { the job ids whose lock belongs to another worker, those whose lock is gone }
]]
--@keys consumers
--@args lock_base lock_ms now_ms consumer
--@each job_id token
local lost, gone = {}, {}
for at = FIRST_ITEM, #ARGV, ITEM_SIZE do
  local id = ARGV[at + JOB_ID]
  local lock = lock_base .. id
  local owner = redis.call("GET", lock)
  if not owner then
    gone[#gone + 1] = id
  elseif owner ~= ARGV[at + TOKEN] or redis.call("PEXPIRE", lock, lock_ms) ~= 1 then
    lost[#lost + 1] = id
  end
end
if consumer ~= "" then
  redis.pcall("ZADD", consumers, now_ms, consumer)
end
return {lost, gone}

--[[
  Puts jobs of this worker's processing list back to the queue when the worker does not know of them: the reply that
  carried them was lost.

  processing  this worker's processing list
  unbegun     this worker's jobs that have not begun
  job_id      "" for an envelope without one
  Reply       how many were put back
]]
--@keys jobs processing unbegun
--@args lock_base
--@each job_id envelope
local returned = 0
for at = FIRST_ITEM, #ARGV, ITEM_SIZE do
  local id, envelope = ARGV[at + JOB_ID], ARGV[at + ENVELOPE]
  if redis.call("LREM", processing, 1, envelope) == 1 then
    redis.call("RPUSH", jobs, envelope)
    if id ~= "" then
      redis.call("DEL", lock_base .. id)
    end
    returned = returned + 1
  end
end
redis.call("DEL", unbegun)
return returned

--[[
  Locks jobs again whose locks had expired, if no other worker has them: a worker that was delayed for long goes on.

  With reliable pickup a job belongs to this worker as long as it is in its processing list. Without, no other worker can
  have the message; only a job with the same id may have been fetched meanwhile, and then the lock belongs to that one.

  processing  this worker's processing list
  reliable    "1" for reliable pickup
  Reply       the job ids that do not belong to this worker any more
]]
--@keys processing
--@args lock_base lock_ms reliable
--@each job_id token envelope
local lost = {}
-- Whether the lock is ours now: it was free, or a call whose reply was lost has taken it.
local function lock(key, token)
  return redis.call("SET", key, token, "NX", "PX", lock_ms) or redis.call("GET", key) == token
end
for at = FIRST_ITEM, #ARGV, ITEM_SIZE do
  local id = ARGV[at + JOB_ID]
  local ours = reliable ~= "1" or redis.call("LPOS", processing, ARGV[at + ENVELOPE])
  if not (ours and lock(lock_base .. id, ARGV[at + TOKEN])) then
    lost[#lost + 1] = id
  end
end
return lost

--[[
  Renews the locks of a batch of jobs and removes the jobs from the set `stalled`. An expired lock is taken again if no
  other worker can have had the job: it is still active, and was neither fetched nor swept since this worker fetched it.

  Renewing means the same as upstream's script, with PEXPIRE in place of SET: a server that has reached its memory limit
  refuses SET, and running jobs would count as stalled. Upstream never takes an expired lock again.

  started, stalls, picked_up  the fields `ats`, `stc` and `processedOn` when the job was fetched; started "": the
                              lock is not taken again
  Reply                       the ids whose lock is gone or belongs to another worker
]]
--@keys stalled active
--@args base lock_ms
--@each job_id token started stalls picked_up
--@own active_jobs active_jobs
local lost = {}
local refused -- why the server did not write a lock
local is_active = active_jobs(KEYS, ARGV)

local function is_untouched(id, started, stalls, picked_up)
  local fields = redis.pcall("HMGET", base .. id, "ats", "stc", "processedOn")
  return fields[1] == started and (fields[2] or "") == stalls and (fields[3] or "") == picked_up
end

for at = FIRST_ITEM, #ARGV, ITEM_SIZE do
  local id, token, started = ARGV[at + JOB_ID], ARGV[at + TOKEN], ARGV[at + STARTED]
  local lock = base .. id .. ":lock"
  local owner = redis.call("GET", lock)
  if owner == token then
    redis.call("PEXPIRE", lock, lock_ms)
    redis.call("SREM", stalled, id)
  elseif not owner and started ~= "" and is_active(id)
    and is_untouched(id, started, ARGV[at + STALLS], ARGV[at + PICKED_UP]) then
    local reply = redis.pcall("SET", lock, token, "PX", lock_ms)
    refused = refused or reply.err
    if not reply.err then
      redis.call("SREM", stalled, id)
    end
  else
    lost[#lost + 1] = id
  end
end

if refused then
  return redis.error_reply(refused) -- the others are renewed; the next heartbeat tries again
end
return lost

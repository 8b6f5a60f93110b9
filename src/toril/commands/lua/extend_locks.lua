--[[
  Extends the locks of a batch of jobs and takes them off the list of suspects. A lock that has run out is retaken if
  nobody can have had the job meanwhile: it is still active, and was neither picked up nor swept since our own pickup.

  The first part means the same as upstream's script, with PEXPIRE in place of SET: a server that has reached its memory
  limit refuses SET, and running jobs would be taken for stalled. Upstream never retakes a lock.

  KEYS   1 stalled, 2 active
  ARGV   1 key base, 2 lock duration (ms), then five words for each job:
           id, token, and the fields of its hash at pickup: ats (attempts started), stc (times stalled), processedOn
           ats "": this lock is not retaken
  Reply  the ids whose lock is gone or is another's
]]
local WORDS = 5
local base, duration = ARGV[1], ARGV[2]
local lost = {}
local active -- ids of active jobs: read once, and only if a lock has run out
local refused -- why the server would not write a lock

local function isActive(id)
  if not active then
    active = {}
    for _, one in ipairs(redis.call("LRANGE", KEYS[2], 0, -1)) do
      active[one] = true
    end
  end
  return active[id]
end

local function isUntouched(id, started, stalls, pickedUp)
  local fields = redis.pcall("HMGET", base .. id, "ats", "stc", "processedOn")
  return fields[1] == started and (fields[2] or "") == stalls and (fields[3] or "") == pickedUp
end

for at = 3, #ARGV, WORDS do
  local id, token, started = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local lock = base .. id .. ":lock"
  local owner = redis.call("GET", lock)
  if owner == token then
    redis.call("PEXPIRE", lock, duration)
    redis.call("SREM", KEYS[1], id)
  elseif not owner and started ~= "" and isActive(id)
    and isUntouched(id, started, ARGV[at + 3], ARGV[at + 4]) then
    local answer = redis.pcall("SET", lock, token, "PX", duration)
    refused = refused or answer.err
    if not answer.err then
      redis.call("SREM", KEYS[1], id)
    end
  else
    lost[#lost + 1] = id
  end
end

if refused then
  return redis.error_reply(refused) -- the others are renewed; the next heartbeat tries again
end
return lost

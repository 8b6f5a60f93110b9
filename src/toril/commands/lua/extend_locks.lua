--[[
  Extends the locks of a batch of jobs and takes them off the list of suspects.

  Same meaning as upstream's, with PEXPIRE in place of SET: a server that has reached its memory limit refuses SET, and
  running jobs would be taken for stalled.

  KEYS   1 stalled
  ARGV   1 key base, 2 lock duration (ms), then id and token of each job
  Reply  the ids whose lock is gone or is another's
]]
local base, duration = ARGV[1], ARGV[2]
local lost = {}
for at = 3, #ARGV, 2 do
  local id, token = ARGV[at], ARGV[at + 1]
  local lock = base .. id .. ":lock"
  if redis.call("GET", lock) == token and redis.call("PEXPIRE", lock, duration) == 1 then
    redis.call("SREM", KEYS[1], id)
  else
    lost[#lost + 1] = id
  end
end
return lost

--[[
  Locks jobs in hand anew whose locks had run out, if they are nobody else's: a worker that was held up for long goes on.

  With reliable pickup a job is ours as long as it stands in our own list. Without, nobody else can have the message; only
  a twin of the same id may have been taken meanwhile, and then the lock is the twin's.

  KEYS   1 this worker's list
  ARGV   1 start of lock keys, 2 lock duration (ms), 3 "1" for reliable pickup, then id, token and envelope of each job
  Reply  the job ids that are not ours any more
]]
local locks, duration, reliable = ARGV[1], ARGV[2], ARGV[3] == "1"
local lost = {}
-- Whether the lock is ours now: it was free, or a call whose reply was lost has taken it.
local function locked(lock, token)
  return redis.call("SET", lock, token, "NX", "PX", duration) or redis.call("GET", lock) == token
end
for at = 4, #ARGV, 3 do
  local ours = not reliable or redis.call("LPOS", KEYS[1], ARGV[at + 2])
  if not (ours and locked(locks .. ARGV[at], ARGV[at + 1])) then
    lost[#lost + 1] = ARGV[at]
  end
end
return lost

--[[
  Renews the locks of the jobs of one lease, and the lease. A lock that has expired is taken again if no other worker can
  have had the job, as in `extend_locks`.

  Reply  the number of jobs that are still locked by the lease
]]
--@keys lease stalled active
--@args base token lock_ms lease_ms
--@own active_jobs active_jobs
local held = 0
if redis.call("LLEN", active) == 0 then
  redis.call("PEXPIRE", lease, lease_ms)
  return held -- no job of the lease is left
end
local is_active = active_jobs(KEYS, ARGV)

for _, entry in ipairs(redis.call("LRANGE", lease, 1, -1)) do
  local colon = string.find(entry, ":", 1, true)
  local id = string.sub(entry, colon + 1)
  local lock = base .. id .. ":lock"
  local owner = redis.call("GET", lock)
  if owner == token then
    redis.call("PEXPIRE", lock, lock_ms)
    redis.call("SREM", stalled, id)
    held = held + 1
  elseif not owner and is_active(id) and redis.call("HGET", base .. id, "ats") == string.sub(entry, 1, colon - 1) then
    if not redis.pcall("SET", lock, token, "PX", lock_ms).err then
      redis.call("SREM", stalled, id)
      held = held + 1
    end
  end
end
redis.call("PEXPIRE", lease, lease_ms)
return held

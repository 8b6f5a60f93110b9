--[[
  Part of the call that takes jobs under a lease: runs `settle` once for each lease, and records what it took.

  A task that is repeated and a micro-batch that is replayed ask for the same lease: they get those of its jobs that are
  still theirs, and no other. A job whose lock has expired is theirs if no other worker can have had it: it is active, and
  was not fetched since.

  lease       list, behind the keys of `settle`: the number of jobs that were taken, then `ats:id` of each, in order
  leases      sorted set of leases that are not closed, by the time at which they were taken
  lease_name  behind the arguments of `settle`: the member of `leases`
  lease_ms    how long the lease is remembered
  ...         the script
]]
--@last_keys lease leases
--@last_args lease_name lease_ms
--@keys active
--@args base now_ms token lock_ms
--@own active_jobs active_jobs
local script = ...

local is_active = active_jobs(KEYS, ARGV)

local function is_held(id, started)
  local owner = redis.call("GET", base .. id .. ":lock")
  if owner == token then
    return true
  end
  if owner or not is_active(id) or redis.call("HGET", base .. id, "ats") ~= started then
    return false
  end
  redis.call("SET", base .. id .. ":lock", token, "PX", lock_ms)
  return true
end

if redis.call("EXISTS", lease) == 1 then
  local jobs = {}
  for _, entry in ipairs(redis.call("LRANGE", lease, 1, -1)) do
    local colon = string.find(entry, ":", 1, true)
    local id = string.sub(entry, colon + 1)
    if is_held(id, string.sub(entry, 1, colon - 1)) then
      local hash = redis.call("HGETALL", base .. id)
      hash[#hash + 1] = id
      jobs[#jobs + 1] = hash
    end
  end
  return {0, jobs, 0, 0, ""}
end

local reply = script(KEYS, ARGV)
if reply.err then
  return reply
end
local entries = {#reply[2]}
for at, hash in ipairs(reply[2]) do
  local id = hash[#hash]
  entries[at + 1] = (redis.call("HGET", base .. id, "ats") or "") .. ":" .. id
end
redis.call("RPUSH", lease, unpack(entries))
redis.call("PEXPIRE", lease, lease_ms)
redis.call("ZADD", leases, now_ms, lease_name)
return reply

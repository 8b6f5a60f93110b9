--[[
  Removes up to `limit` jobs of a paused queue by the official script, and finally the queue itself.

  The last call removes the pause with everything else. A repeated call, whose reply was lost, would then be refused
  because the queue is not paused; so a queue of which nothing is left is not refused.

  The official script raises at a job whose key, parent or deduplication is not what it expects. Then the first jobs of
  each state are removed one by one, and those at which it still raises by their keys.

  work, work_events  a temporary set and a temporary stream for the official script
  force              "force" to remove active jobs too
  Reply              1 when some are left, 0 when none is, -1 when the queue is not paused, -2 when it has active jobs
]]
--@keys meta base work work_events
--@args limit force
--@official obliterate obliterate
--@official clean cleanJobsInSet
--@own one_by_one one_by_one
--@own is_data_error is_data_error

local LISTS = {wait = true, paused = true, active = true}
local STATES = {"wait", "paused", "active", "prioritized", "delayed", "completed", "failed"}
local BELONGS = {"", ":lock", ":logs", ":dependencies", ":processed", ":failed", ":unsuccessful"}

local function remove_by_keys(id)
  for _, suffix in ipairs(BELONGS) do
    redis.call("DEL", base .. id .. suffix)
  end
end

-- Removes jobs as the official script does: as ended ones, whatever their state and age.
local function remove(ids)
  redis.call("DEL", work)
  for _, id in ipairs(ids) do
    redis.call("ZADD", work, 0, id)
  end
  return clean({work, work_events, work_events}, {base, "0", "0", "completed"})
end

local function remove_first(state)
  local key = base .. state
  local ids = redis.call(LISTS[state] and "LRANGE" or "ZRANGE", key, 0, limit - 1)
  local _, left = one_by_one(KEYS, ARGV, ids, remove)
  for _, id in ipairs(left) do
    remove_by_keys(id)
  end
  for _, id in ipairs(ids) do
    redis.call("DEL", base .. id .. ":lock")
  end
  if LISTS[state] then
    redis.call("LTRIM", key, #ids, -1)
  elseif #ids > 0 then
    redis.call("ZREM", key, unpack(ids))
  end
end

local left = {meta, base .. "id", base .. "waiting-children", base .. "repeat"}
for _, state in ipairs(STATES) do
  left[#left + 1] = base .. state
end
if redis.call("EXISTS", unpack(left)) == 0 then
  return 0
end
local ok, reply = pcall(obliterate, KEYS, ARGV)
if ok then
  return reply
elseif not is_data_error(KEYS, ARGV, reply) then
  error(reply, 0)
end
for _, state in ipairs(STATES) do
  remove_first(state)
end
redis.call("DEL", work, work_events)
return 1

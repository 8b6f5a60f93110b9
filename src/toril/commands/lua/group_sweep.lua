--[[
  Checks the slots of groups against the active jobs: those of jobs that are not active any more are freed, and active
  jobs of groups that have a concurrency get one, whichever client fetched them. Then it looks at a bounded number of
  groups that hold jobs.

  It costs the list of active jobs plus the slots. Without limits it costs one look.

  limits     set as the limits of `group` before, in JSON; "-" removes them; "" changes nothing
  is_paused  "1" pauses `group` before, "0" resumes it; "" changes nothing
  group      "" for the limits of all groups
  Reply      the number of slots that were freed
]]
--@keys wait active prioritized events delayed paused meta pc marker
--@args base group limits is_paused
--@own group_limits group_limits
--@own group_of group_of
local GROUPS_AT_ONCE = 500

local call = redis.call
local own = base .. "toril:group"
if limits == "-" then
  call("HDEL", own .. "-limits", group)
elseif limits ~= "" then
  call("HSET", own .. "-limits", group, limits)
end
if limits ~= "" and group ~= "" then
  -- Without a maximum size, jobs are not counted any more.
  local found = call("HMGET", own .. "-limits", group, "")
  if not string.find(found[1] or found[2] or "", '"size"', 1, true) then
    call("UNLINK", own .. ":waiting:" .. group)
  end
end
if is_paused ~= "" then
  call(is_paused == "1" and "SADD" or "SREM", own .. "-paused", group)
end
if call("EXISTS", own .. "-limits", own .. "-paused", own .. "-slots", own .. "-holding") == 0 then
  return 0
end

local groups = group_limits(KEYS, ARGV)
local slots, is_active = {}, {}
for _, id in ipairs(call("LRANGE", active, 0, -1)) do
  is_active[id] = true
end
local found, freed = call("HGETALL", own .. "-slots"), 0
for at = 1, #found, 2 do
  local id, name = found[at], found[at + 1]
  slots[id] = true
  if not is_active[id] and groups.free_unused(name, id) then
    freed = freed + 1
  end
end
for id in pairs(is_active) do
  local name = not slots[id] and group_of(KEYS, ARGV, id)
  if name then
    groups.register(name, id)
  end
end
groups.reopen(0)

if group ~= "" then
  groups.state_of(group, GROUPS_AT_ONCE)
end
for _, name in ipairs(call("SRANDMEMBER", own .. "-holding", GROUPS_AT_ONCE)) do
  groups.state_of(name, GROUPS_AT_ONCE)
end
groups.finish()
return freed

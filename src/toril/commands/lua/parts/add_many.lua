--[[
  Part of `add_jobs.lua` and `enqueue_once.lua`: adds a run of plain jobs { id, arguments, data, options } with the same
  keys and events as the official script. The settings of the queue are read once, ids are counted and pushed together.
  The id of each job is added to `replies`, or { id, key } when the job exists.
]]
--@keys id_counter events marker
--@own read_meta read_meta
local run, replies = ...
local call = redis.call
-- One trim removes at most 10,000 entries, less those that a run can add.
local TRIMMED_AT_ONCE = 5000

-- Which of the ids that clients chose exist already.
local chosen, known = {}, {}
for _, job in ipairs(run) do
  if job[1] ~= "" then
    chosen[#chosen + 1] = job[2][1] .. job[1]
  end
end
if #chosen > 0 and call("EXISTS", unpack(chosen)) > 0 then
  for _, key in ipairs(chosen) do
    known[key] = call("EXISTS", key) == 1
  end
end

local counter = call("INCRBY", id_counter, #run) - #run
local max_events, list, wakes = read_meta(KEYS, ARGV)

local function announce(trims, ...)
  if trims then
    call("XADD", events, "MAXLEN", "~", max_events, "*", ...)
  else
    call("XADD", events, "*", ...)
  end
end

local pushed = {LPUSH = {}, RPUSH = {}}
-- A trim rarely finds a whole block to remove: that of the last job does it for those between, unless one is not enough.
local limit = tonumber(max_events) or 0
local count, trims_always = #run, limit == 0 or call("XLEN", events) > limit + TRIMMED_AT_ONCE
for place, job in ipairs(run) do
  local trims = trims_always or place == count
  local id, arguments, options = job[1], job[2], job[4]
  if id == "" then
    id = tostring(counter + place)
  end
  local key = arguments[1] .. id
  if known[key] then
    announce(trims, "event", "duplicated", "jobId", id)
    replies[#replies + 1] = {id, key}
  else
    known[key] = job[1] ~= ""
    call("HMSET", key, "name", arguments[3], "data", job[3], "opts", options[1], "timestamp", arguments[4],
      "delay", options[2], "priority", "0")
    call("XADD", events, "*", "event", "added", "jobId", id, "name", arguments[3])
    announce(trims, "event", "waiting", "jobId", id)
    local ids = pushed[options[3]]
    ids[#ids + 1] = id
    replies[#replies + 1] = id
  end
end
for command, ids in pairs(pushed) do
  if #ids > 0 then
    call(command, list, unpack(ids))
  end
end
if wakes and #pushed.LPUSH + #pushed.RPUSH > 0 then
  call("ZADD", marker, "0", "0")
end

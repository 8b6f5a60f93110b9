--[[
  Part of `add_jobs.lua` and `enqueue_once.lua`: the short way. Adds a run of plain jobs { id, arguments, data, options }
  to the same keys and with the same events as the official script; what the queue says of itself is read once, ids are
  counted and pushed together. The id of each job is added to `replies`, or { id, key } when the job exists.
]]
--@own queueSays read_meta
local run, replies = ...
local call = redis.call

-- Which of the ids that clients chose are taken already.
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

local counter = call("INCRBY", KEYS[4], #run) - #run
local maxEvents, list, calling = queueSays(KEYS, ARGV)
local pushed = {LPUSH = {}, RPUSH = {}}
for place, job in ipairs(run) do
  local id, words, options = job[1], job[2], job[4]
  if id == "" then
    id = tostring(counter + place)
  end
  local key = words[1] .. id
  if known[key] then
    call("XADD", KEYS[8], "MAXLEN", "~", maxEvents, "*", "event", "duplicated", "jobId", id)
    replies[#replies + 1] = {id, key}
  else
    known[key] = job[1] ~= ""
    call("HMSET", key, "name", words[3], "data", job[3], "opts", options[1], "timestamp", words[4],
      "delay", options[2], "priority", 0)
    call("XADD", KEYS[8], "*", "event", "added", "jobId", id, "name", words[3])
    call("XADD", KEYS[8], "MAXLEN", "~", maxEvents, "*", "event", "waiting", "jobId", id)
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
if calling and #pushed.LPUSH + #pushed.RPUSH > 0 then
  call("ZADD", KEYS[9], 0, "0")
end

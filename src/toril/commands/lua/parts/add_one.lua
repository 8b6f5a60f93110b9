--[[
  Part of `add_jobs.lua`: the shortest way, for one plain job { id, arguments, data, options } without company, as most
  adds are. It leaves what `add_many.lua` would leave of it. Returns the job's id, or { id, key } when it exists.
]]
--@own queueSays read_meta
local job = ...
local id, words, options = job[1], job[2], job[4]
local call = redis.call

local counter = call("INCR", KEYS[4])
local maxEvents, list, calling = queueSays(KEYS, ARGV)
if id == "" then
  id = tostring(counter)
elseif call("EXISTS", words[1] .. id) == 1 then
  call("XADD", KEYS[8], "MAXLEN", "~", maxEvents, "*", "event", "duplicated", "jobId", id)
  return {id, words[1] .. id}
end

call("HMSET", words[1] .. id, "name", words[3], "data", job[3], "opts", options[1], "timestamp", words[4],
  "delay", options[2], "priority", 0)
call("XADD", KEYS[8], "*", "event", "added", "jobId", id, "name", words[3])
call("XADD", KEYS[8], "MAXLEN", "~", maxEvents, "*", "event", "waiting", "jobId", id)
call(options[3], list, id)
if calling then
  call("ZADD", KEYS[9], 0, "0")
end
return id

--[[
  Part of `add_jobs.lua`: adds one plain job { id, arguments, data, options } that is alone in its call, as most adds are.
  It leaves the same keys as `add_many.lua`. Returns the job's id, or { id, key } when it exists.
]]
--@keys id_counter events marker
--@own read_meta read_meta
local job = ...
local id, arguments, options = job[1], job[2], job[4]
local call = redis.call

local counter = call("INCR", id_counter)
local max_events, list, wakes = read_meta(KEYS, ARGV)
if id == "" then
  id = tostring(counter)
elseif call("EXISTS", arguments[1] .. id) == 1 then
  call("XADD", events, "MAXLEN", "~", max_events, "*", "event", "duplicated", "jobId", id)
  return {id, arguments[1] .. id}
end

call("HMSET", arguments[1] .. id, "name", arguments[3], "data", job[3], "opts", options[1], "timestamp", arguments[4],
  "delay", options[2], "priority", "0")
call("XADD", events, "*", "event", "added", "jobId", id, "name", arguments[3])
call("XADD", events, "MAXLEN", "~", max_events, "*", "event", "waiting", "jobId", id)
call(options[3], list, id)
if wakes then
  call("ZADD", marker, "0", "0")
end
return id

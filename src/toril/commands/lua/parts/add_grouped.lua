--[[
  Part of the scripts that add jobs: adds a job of a group, with its tick as its priority.

  base, id   the queue of the job, and the id that was chosen for it, or ""
  packed     its options
  add        (kind, options) → the reply of the script that adds it
  parent     true for a job that waits for children: it is not counted in the size of its group
  Returns the reply, or the code of a group that is full.
]]
--@own group_size group_size
--@own group_tick group_tick
local base, id, packed, add, parent = ...
local options = cmsgpack.unpack(packed)
local group = options["group"]["id"]
local is_new = id == "" or redis.call("EXISTS", base .. id) == 0
local waiting = is_new and not parent and group_size(KEYS, ARGV, base, group)
if type(waiting) == "number" then
  return waiting
end
local tick, time = group_tick(KEYS, ARGV, base, group)
options["priority"] = tick
local kind = (options["delay"] or 0) > 0 and "delayed" or "prioritized"
local reply = add(parent and "parent" or kind, cmsgpack.pack(options))
if is_new and type(reply) == "string" then
  redis.call("ZADD", base .. "toril:groups", time, group)
  if waiting then
    redis.call("ZADD", waiting, time, reply)
  end
end
return reply

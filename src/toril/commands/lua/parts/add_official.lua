--[[
  Part of `add_jobs.lua` and `add_flow.lua`: adds one job by an official script. Returns the script's reply, or
  { id, key } when no job was stored because one of the same id or deduplication id exists.

  existed       whether a job of this id exists ("" for an id that the counter gives)
  deduplicated  whether the job has a deduplication id
]]
--@own add_deduplicated add_deduplicated
local script, keys, args, base, id, existed, deduplicated, id_counter = ...
local reply = deduplicated and add_deduplicated(KEYS, ARGV, script, keys, args, base, id) or script(keys, args)
if type(reply) ~= "string" then
  return reply
end
if deduplicated and not existed then
  if id == "" then
    existed = reply ~= redis.call("GET", id_counter)
  else
    existed = redis.call("EXISTS", base .. id) == 0
  end
end
return existed and {reply, base .. reply} or reply

--[[
  Part of `add_jobs.lua` and `add_flow.lua`: adds one job by an official body. Returns what the body returns, or
  { id, key } when no job was stored because one of the same id or deduplication id exists.

  `existed` says whether there is a job of this id ("" for one that the counter gives), `deduplicated` whether another
  job may stand for it.
]]
local body, keys, args, base, id, existed, deduplicated, counterKey = ...
local reply = body(keys, args)
if type(reply) ~= "string" then
  return reply
end
if deduplicated and not existed then
  if id == "" then
    existed = reply ~= redis.call("GET", counterKey)
  else
    existed = redis.call("EXISTS", base .. id) == 0
  end
end
return existed and {reply, base .. reply} or reply

--[[
  Part of `add_official.lua` and `enqueue_once.lua`: adds a job that has a deduplication id by an official script, and as
  BullMQ 6 does for the two modes that the official script does not know.

  keepLastIfActive  a duplicate of an active job is stored under `dn:<deduplication id>`, the newest in place of older
                    ones; it is added when that job has finished (`requeue_next.lua`). The deduplication key has no time to
                    live, so that the mode lasts as long as the job.
  reschedule        a duplicate of a delayed job starts the delay of that job again.

  A deduplication key that lasts until its job ends, and whose job does not exist any more, is removed in both modes.
  Returns the reply of the official script: the id of the job that is stored, or of the one that has the deduplication id.
]]
--@official change_delay changeDelay
local script, keys, args, base, id = ...
local options = cmsgpack.unpack(args[3])
local mode = options["de"]
local keeps_last = mode["keepLastIfActive"]
if not keeps_last and not mode["reschedule"] then
  return script(keys, args)
end

local call = redis.call
local arguments = cmsgpack.unpack(args[1])
local parent, deduplication_key, next_key = arguments[5], arguments[9], base .. "dn:" .. mode["id"]
if (id ~= "" and call("EXISTS", base .. id) == 1) or (parent and call("EXISTS", parent) == 0) then
  return script(keys, args)
end

local holder = call("GET", deduplication_key)
if holder and call("PTTL", deduplication_key) == -1 and call("EXISTS", base .. holder) == 0 then
  call("DEL", deduplication_key, next_key)
  holder = false
end

local function store_next()
  local counter = call("INCR", base .. "id")
  local new_id = id ~= "" and id or tostring(counter)
  local fields = {"name", arguments[3], "data", args[2], "opts", cjson.encode(options), "jid", new_id}
  local function append(name, value)
    if value then
      fields[#fields + 1], fields[#fields + 2] = name, value
    end
  end
  append("pk", parent)
  append("pd", parent and cjson.encode(arguments[7]))
  append("pdk", arguments[6])
  append("rjk", arguments[8])
  call("DEL", next_key)
  call("HSET", next_key, unpack(fields))
  call("PERSIST", deduplication_key)
  local max_events = call("HGET", base .. "meta", "opts.maxLenEvents") or "10000"
  call("XADD", base .. "events", "MAXLEN", "~", max_events, "*", "event", "deduplicated", "jobId", holder,
    "deduplicationId", mode["id"], "deduplicatedJobId", new_id)
  return holder
end

if keeps_last and holder and call("LPOS", base .. "active", holder) then
  return store_next()
end

local reply = script(keys, args)
if type(reply) ~= "string" then
  return reply
end
local is_added = reply ~= holder
if keeps_last and (is_added or mode["extend"]) then
  call("PERSIST", deduplication_key)
end
if is_added and holder then -- it took the place of a delayed job: what was to follow that one is dropped
  call("DEL", next_key)
end
if not is_added and mode["reschedule"] and call("ZSCORE", base .. "delayed", holder) then
  change_delay({base .. "delayed", base .. "meta", base .. "marker", base .. "events"},
    {options["delay"] or 0, arguments[4], holder, base .. holder})
end
return reply

--[[
  Part of `add_jobs.lua` and `enqueue_once.lua`: the official scripts that add a job, by its kind, each with its keys.
]]
--@keys wait paused meta id_counter completed delayed active events marker prioritized pc waiting_children
--@official add_standard addStandardJob
--@official add_delayed addDelayedJob
--@official add_prioritized addPrioritizedJob
--@official add_parent addParentJob
--@own group_size group_size
--@own group_tick group_tick
return {
  -- Adds a job of a group by `add(kind, options)`, with its tick as its priority. Returns the reply, or the code of a group
  -- that is full.
  grouped = function(base, id, packed, add)
    local options = cmsgpack.unpack(packed)
    local group = options["group"]["id"]
    local is_new = id == "" or redis.call("EXISTS", base .. id) == 0
    local waiting = is_new and group_size(KEYS, ARGV, base, group)
    if type(waiting) == "number" then
      return waiting
    end
    local tick, time = group_tick(KEYS, ARGV, base, group)
    options["priority"] = tick
    local reply = add((options["delay"] or 0) > 0 and "delayed" or "prioritized", cmsgpack.pack(options))
    if is_new and type(reply) == "string" then
      redis.call("ZADD", base .. "toril:groups", time, group)
      if waiting then
        redis.call("ZADD", waiting, time, reply)
      end
    end
    return reply
  end,
  standard = {add_standard, {wait, paused, meta, id_counter, completed, delayed, active, events, marker}},
  delayed = {add_delayed, {marker, meta, id_counter, delayed, completed, events}},
  prioritized = {add_prioritized, {marker, meta, id_counter, prioritized, delayed, completed, active, events, pc}},
  parent = {add_parent, {meta, id_counter, delayed, waiting_children, completed, events}},
}

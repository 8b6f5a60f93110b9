--[[
  Part of `add_jobs.lua` and `enqueue_once.lua`: the official scripts that add a job, by its kind, each with its keys.
]]
--@keys wait paused meta id_counter completed delayed active events marker prioritized pc waiting_children
--@official add_standard addStandardJob
--@official add_delayed addDelayedJob
--@official add_prioritized addPrioritizedJob
--@official add_parent addParentJob
--@own group_tick group_tick
return {
  -- A job of a group gets its tick as its priority. Returns the kind, the options, the group and the tick.
  charge_group = function(base, packed)
    local options = cmsgpack.unpack(packed)
    local group = options["group"]["id"]
    local tick = group_tick(KEYS, ARGV, base, group)
    options["priority"] = tick
    return (options["delay"] or 0) > 0 and "delayed" or "prioritized", cmsgpack.pack(options), group, tick
  end,
  standard = {add_standard, {wait, paused, meta, id_counter, completed, delayed, active, events, marker}},
  delayed = {add_delayed, {marker, meta, id_counter, delayed, completed, events}},
  prioritized = {add_prioritized, {marker, meta, id_counter, prioritized, delayed, completed, active, events, pc}},
  parent = {add_parent, {meta, id_counter, delayed, waiting_children, completed, events}},
}

--[[
  Part of `add_jobs.lua` and `enqueue_once.lua`: the official scripts that add a job, by its kind, each with its keys.
]]
--@keys wait paused meta id_counter completed delayed active events marker prioritized pc waiting_children
--@official add_standard addStandardJob
--@official add_delayed addDelayedJob
--@official add_prioritized addPrioritizedJob
--@official add_parent addParentJob
return {
  standard = {add_standard, {wait, paused, meta, id_counter, completed, delayed, active, events, marker}},
  delayed = {add_delayed, {marker, meta, id_counter, delayed, completed, events}},
  prioritized = {add_prioritized, {marker, meta, id_counter, prioritized, delayed, completed, active, events, pc}},
  parent = {add_parent, {meta, id_counter, delayed, waiting_children, completed, events}},
}

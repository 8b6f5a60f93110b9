--[[
  Part of `official_adds.lua`: the tick of the next job of a group, which is its priority: where it stands in the order
  that serves groups in turns.

  A group's jobs are 16 ticks apart, divided by its weight. The clock is the highest tick of a grouped job that was first
  in the queue when a job was added: a group that was idle begins there, and gets no credit for its idle time. When no
  prioritized job is left, nothing of this matters any more, and it begins again at 0.

  Returns the tick, below BullMQ's highest priority. Beyond it, jobs are served in the order in which they were added.
]]
--@keys prioritized
local base, group = ...
local TICKS_PER_JOB, MAX_TICK = 16, 0x200000 - 1
-- Groups that the clock has passed are removed in bounded steps, more than one add can create.
local REMOVED_AT_ONCE = 50

local call = redis.call
local groups, clock_key = base .. "toril:groups", base .. "toril:group-clock"
local head = call("ZRANGE", prioritized, 0, 0, "WITHSCORES")
local clock, last = 0, nil
if #head == 0 then
  call("UNLINK", groups, clock_key)
else
  local before = tonumber(call("GET", clock_key)) or 0
  local options = redis.pcall("HGET", base .. head[1], "opts")
  local is_grouped = type(options) == "string" and string.find(options, '"group":{', 1, true)
  clock = is_grouped and math.max(before, math.floor(head[2] / 0x100000000)) or before
  if clock > before then
    call("SET", clock_key, clock)
    local passed = call("ZRANGEBYSCORE", groups, "-inf", clock, "LIMIT", 0, REMOVED_AT_ONCE)
    if #passed > 0 then
      call("ZREM", groups, unpack(passed))
    end
  end
  last = call("ZSCORE", groups, group)
end
local weight = tonumber(call("HGET", base .. "toril:group-weights", group)) or 1
local step = math.max(1, math.floor(TICKS_PER_JOB / weight + 0.5))
return math.min(math.max(clock, tonumber(last) or 0) + step, MAX_TICK)

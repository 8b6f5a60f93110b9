--[[
  Schedules waiting jobs of a list whose names no worker knows, before they are fetched: what a fetch and a settlement of
  kind "later" would leave, without the job's way to a worker and back. Jobs that need more stay where they are
  (`parts/envelope_refusals.lua`), and so do those of workers that died, and copies of a scheduled one.

  limit      how many jobs to look at, at most 3,000: Lua passes no more values to a call
  max_bytes  … and how many bytes; one job is always looked at
  Reply      { how many jobs were looked at, name, how many of it were scheduled, … }
]]
--@keys jobs scheduled stalls announced
--@args now_ms limit max_bytes max_attempts meta_field factor first_ms longest_ms give_up_ms
--@each known
--@own unknown_names unknown_names
--@own envelope_refusals envelope_refusals
--@own schedule_refused schedule_refused
--@own envelope_id envelope_id
local call, most, most_bytes = redis.call, tonumber(limit), tonumber(max_bytes)
local names = unknown_names(KEYS, ARGV)
if names.is_known["*"] then
  return {0}
end

-- In the order in which they are fetched: the last of the list is the first.
local envelopes, size, step = {}, 0, 1
while #envelopes < most and (size < most_bytes or #envelopes == 0) do
  local asked = math.min(step, most - #envelopes)
  local page = call("LRANGE", jobs, -#envelopes - asked, -#envelopes - 1)
  for at = #page, 1, -1 do
    envelopes[#envelopes + 1] = page[at]
    size = size + #page[at]
  end
  if #page < asked then
    break
  end
  -- As many as the remaining bytes allow, if they are as large as those before.
  step = math.max(1, math.min(2 * step, math.floor((most_bytes - size) * #envelopes / math.max(size, 1))))
end

local refuse = envelope_refusals(KEYS, ARGV, names)
local function refuse_unless_stalled(envelope)
  if call("HEXISTS", stalls, envelope_id(KEYS, ARGV, envelope) or "") == 0 then
    return refuse(envelope)
  end
end
local has_stalls = call("EXISTS", stalls) == 1
local refused, last, reply = schedule_refused(KEYS, ARGV, envelopes, has_stalls and refuse_unless_stalled or refuse)
if last > 0 then
  local kept = {}
  for at = last, 1, -1 do
    if not refused[at] then
      kept[#kept + 1] = envelopes[at]
    end
  end
  call("LTRIM", jobs, 0, -last - 1)
  if #kept > 0 then
    call("RPUSH", jobs, unpack(kept))
  end
end
return reply

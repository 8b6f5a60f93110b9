--[[
  Schedules entries that no worker has fetched and whose names no worker knows: what a fetch and a settlement of kind
  "later" would leave, without the job's way to a worker and back. Jobs that need more are left to a fetch
  (`parts/envelope_refusals.lua`), and so are copies of a scheduled one.

  The consumer group's position moves past the last entry that is refused. Entries before it that stay are given back
  without a delivery: they are pending for a consumer that belongs to no worker, and are fetched before all others.

  limit              how many entries to look at, those that were given back before included; at most 3,000, because Lua
                     passes no more values to a call
  max_bytes          … and how many bytes; one entry is always looked at
  returned_consumer  the consumer that belongs to no worker
  Reply              { how many entries were looked at, name, how many of it were scheduled, … }
]]
--@keys stream scheduled announced
--@args consumer_group returned_consumer now_ms limit max_bytes max_attempts meta_field factor first_ms longest_ms
--@args give_up_ms
--@each known
--@own unknown_names unknown_names
--@own envelope_refusals envelope_refusals
--@own schedule_refused schedule_refused
--@own entries_page entries_page
--@own group_info group_info
--@own pass_entries pass_entries
local call = redis.call
local names = unknown_names(KEYS, ARGV)
local info = group_info(KEYS, ARGV)
if names.is_known["*"] or not info then
  return {0}
end
local room = limit - #call("XPENDING", stream, consumer_group, "-", "+", limit, returned_consumer)
if room <= 0 then
  return {0}
end

local refuse = envelope_refusals(KEYS, ARGV, names)
local function refuse_entry(entry)
  local fields = entry[2]
  if fields[1] == "envelope" and not fields[3] then
    return refuse(fields[2])
  end
end
local after = "(" .. info["last-delivered-id"]
local entries = entries_page(KEYS, ARGV, stream, "XRANGE", after, "+", room, tonumber(max_bytes))
local refused, last, reply = schedule_refused(KEYS, ARGV, entries, refuse_entry)
if last > 0 then
  local kept = {}
  for at = 1, last do
    if not refused[at] then
      kept[#kept + 1] = entries[at][1]
    end
  end
  pass_entries(KEYS, ARGV, info, entries[last][1], last)
  if #kept > 0 then
    for _, option in ipairs({"RETRYCOUNT", 0, "FORCE", "JUSTID"}) do
      kept[#kept + 1] = option
    end
    call("XCLAIM", stream, consumer_group, returned_consumer, 0, unpack(kept))
  end
end
return reply

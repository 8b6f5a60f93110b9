--[[
  Takes over stream entries that nobody renews any more.

  Two kinds: entries of other consumers that were idle for long (XAUTOCLAIM), and entries of our own name that we do not
  know of (a reply was lost, or an earlier process had our name). An entry that was trimmed while it was pending is gone:
  it is counted, so that somebody notices.

  KEYS   1 stream, 2 totals
  ARGV   1 group, 2 consumer, 3 idle time (ms) of others' entries, 4 idle time (ms) of our own, 5 cursor, 6 how many,
         then the entry ids that we have in hand
  Reply  { next cursor, jobs, ids that were trimmed }
           jobs: id, deliveries, envelope (or all fields if there is none), ... flat
]]
--@own entry_text entry_text
local group, consumer, cursor, limit = ARGV[1], ARGV[2], ARGV[5], tonumber(ARGV[6])
local in_hand = {}
for at = 7, #ARGV do
  in_hand[ARGV[at]] = true
end

local jobs, trimmed = {}, {}
local function keep(entries)
  for _, entry in ipairs(entries) do
    if entry and entry[2] then
      local pending = redis.call("XPENDING", KEYS[1], group, entry[1], entry[1], 1)[1]
      jobs[#jobs + 1] = entry[1]
      jobs[#jobs + 1] = pending and pending[4] or 1
      jobs[#jobs + 1] = entry_text(KEYS, ARGV, entry[2])
    end
  end
end

local function lose(id)
  redis.call("XACK", KEYS[1], group, id)
  trimmed[#trimmed + 1] = id
end

-- Our own name first: these are ours without any doubt. A stream without our group has nothing to claim.
local own = redis.pcall("XPENDING", KEYS[1], group, "IDLE", ARGV[4], "-", "+", limit, consumer)
if own.err then
  return {"0-0", jobs, trimmed}
end
for _, one in ipairs(own) do
  if not in_hand[one[1]] then
    if #redis.call("XRANGE", KEYS[1], one[1], one[1]) == 0 then
      lose(one[1])
    else
      keep(redis.call("XCLAIM", KEYS[1], group, consumer, ARGV[4], one[1]))
    end
  end
end

local room = limit - #jobs / 3
if room > 0 then
  local reply = redis.call("XAUTOCLAIM", KEYS[1], group, consumer, ARGV[3], cursor, "COUNT", room)
  cursor = reply[1]
  keep(reply[2])
  for _, id in ipairs(reply[3] or {}) do
    lose(id)
  end
end
if #trimmed > 0 then
  redis.call("HINCRBY", KEYS[2], "trimmed", #trimmed)
end
return {cursor, jobs, trimmed}

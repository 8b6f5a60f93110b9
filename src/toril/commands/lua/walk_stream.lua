--[[
  Skips entries of a stream and returns the id that it reached, without sending the entries.

  The ordinal of an entry is the number of entries added up to and with it. The caller knows the ordinal of `after`. When
  the entries that follow `after` were trimmed, the ordinals are counted anew from the first entry that is left: the
  third value of the reply is then the number of entries before it, otherwise -1.

  limit  entries to skip at most
  Reply  { entries skipped, id of the last one (or `after`), entries trimmed before the first, or -1 }
]]
--@keys stream
--@args after limit
--@own named_fields named_fields
local function parts(id)
  local ms, seq = string.match(id, "^(%d+)-(%d+)$")
  return tonumber(ms), tonumber(seq)
end

local function is_later(one, other)
  local ms, seq = parts(one)
  local other_ms, other_seq = parts(other)
  return ms > other_ms or (ms == other_ms and seq > other_seq)
end

local page = redis.call("XRANGE", stream, "(" .. after, "+", "COUNT", limit)
if #page == 0 then
  return {0, after, -1}
end

local trimmed = -1
local first = redis.call("XRANGE", stream, "-", "+", "COUNT", 1)[1][1]
if is_later(first, after) then
  local info = named_fields(KEYS, ARGV, redis.call("XINFO", "STREAM", stream))
  if info["entries-added"] then
    trimmed = info["entries-added"] - info["length"]
  end
end
return {#page, page[#page][1], trimmed}

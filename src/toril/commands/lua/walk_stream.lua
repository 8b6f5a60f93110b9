--[[
  Skips entries of a stream and says where it arrived, without sending them.

  The ordinal of an entry (how many were added up to and with it) is known to the caller for the place it starts from.
  When the entries behind that place were trimmed meanwhile, the ordinals are counted anew from the first entry that is
  left: then the third word of the reply is the number of entries before it, otherwise -1.

  KEYS   1 stream
  ARGV   1 id to start after, 2 number of entries to skip at most
  Reply  { entries skipped, id of the last one (or where it started), entries trimmed before the first, or -1 }
]]
local function parts(id)
  local ms, seq = string.match(id, "^(%d+)-(%d+)$")
  return tonumber(ms), tonumber(seq)
end

local function later(one, other)
  local ms, seq = parts(one)
  local other_ms, other_seq = parts(other)
  return ms > other_ms or (ms == other_ms and seq > other_seq)
end

local page = redis.call("XRANGE", KEYS[1], "(" .. ARGV[1], "+", "COUNT", ARGV[2])
if #page == 0 then
  return {0, ARGV[1], -1}
end

local trimmed = -1
local first = redis.call("XRANGE", KEYS[1], "-", "+", "COUNT", 1)[1][1]
if later(first, ARGV[1]) then
  local info = redis.call("XINFO", "STREAM", KEYS[1])
  local fields = {}
  for i = 1, #info, 2 do
    fields[info[i]] = info[i + 1]
  end
  if fields["entries-added"] then
    trimmed = fields["entries-added"] - fields["length"]
  end
end
return {#page, page[#page][1], trimmed}

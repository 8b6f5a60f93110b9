--[[
  A page of a stream together with what the stream says of itself at that very moment, so that a reader knows exactly how
  many entries were trimmed before it came to read them.

  KEYS   1 stream
  ARGV   1 id to read after, 2 entries at most (0: none), 3 "1" to count the entries up to that id
  Reply  { entries ever added (-1: the server does not count), length, first id or "", last id, entries up to ARGV[1] or -1,
           entries }
]]
if redis.call("EXISTS", KEYS[1]) == 0 then
  return {0, 0, "", "0-0", 0, {}}
end

local info = redis.call("XINFO", "STREAM", KEYS[1])
local fields = {}
for i = 1, #info, 2 do
  fields[info[i]] = info[i + 1]
end
local first = fields["first-entry"]
local before = -1
if ARGV[3] == "1" then
  before = #redis.call("XRANGE", KEYS[1], "-", ARGV[1])
end
local page = {}
if tonumber(ARGV[2]) > 0 then
  page = redis.call("XRANGE", KEYS[1], "(" .. ARGV[1], "+", "COUNT", ARGV[2])
end
return {fields["entries-added"] or -1, fields["length"], first and first[1] or "", fields["last-generated-id"], before, page}

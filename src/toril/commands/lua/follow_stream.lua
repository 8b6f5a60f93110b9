--[[
  Reads a page of a stream together with the stream's own counters at the same moment, so that a reader knows exactly
  how many entries were trimmed before it read them.

  after         the id to read after
  limit         entries at most, 0 for none
  count_before  "1" to count the entries up to `after`
  Reply         { entries ever added (-1: the server does not count), length, first id or "", last id,
                  entries up to `after` or -1, entries }
]]
--@keys stream
--@args after limit count_before
--@own named_fields named_fields
if redis.call("EXISTS", stream) == 0 then
  return {0, 0, "", "0-0", 0, {}}
end

local info = named_fields(KEYS, ARGV, redis.call("XINFO", "STREAM", stream))
local first = info["first-entry"]
local before = -1
if count_before == "1" then
  before = #redis.call("XRANGE", stream, "-", after)
end
local page = {}
if tonumber(limit) > 0 then
  page = redis.call("XRANGE", stream, "(" .. after, "+", "COUNT", limit)
end
return {info["entries-added"] or -1, info["length"], first and first[1] or "", info["last-generated-id"], before, page}

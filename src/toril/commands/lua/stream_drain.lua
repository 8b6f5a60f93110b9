--[[
  Removes a bounded number of the entries that no worker had fetched when the drain began; entries that a worker is
  processing stay.

  The consumer group's position moves past the removed entries, so that its lag stays exact.

  limit              entries at most
  max_bytes          bytes at most; one entry is always removed
  last_id            the last entry when the drain began, "" in the first call
  returned_consumer  the consumer that holds the entries that were given back
  Reply              { how many were removed, the last entry when the drain began, or "" at the end }
]]
--@keys stream
--@args consumer_group limit max_bytes last_id returned_consumer
--@own group_info group_info
--@own pass_entries pass_entries
--@own entries_page entries_page
local function newest_id()
  local newest = redis.call("XREVRANGE", stream, "+", "-", "COUNT", 1)[1]
  return newest and newest[1]
end

local last = last_id ~= "" and last_id or newest_id()
if not last then
  return {0, ""}
end
local info = group_info(KEYS, ARGV)

-- Entries that were given back wait as well. They are removed first, and the drain goes on.
local returned = info and redis.call("XPENDING", stream, consumer_group, "-", last, limit, returned_consumer) or {}
if #returned > 0 then
  for _, one in ipairs(returned) do
    redis.call("XACK", stream, consumer_group, one[1])
    redis.call("XDEL", stream, one[1])
  end
  return {#returned, last}
end

local after = info and info["last-delivered-id"]
local from = after and "(" .. after or "-"
local page, more = entries_page(KEYS, ARGV, stream, "XRANGE", from, last, tonumber(limit), tonumber(max_bytes))
if #page == 0 then
  return {0, ""}
end
local ids = {}
for at, entry in ipairs(page) do
  ids[at] = entry[1]
end
redis.call("XDEL", stream, unpack(ids))
if info then
  pass_entries(KEYS, ARGV, info, ids[#ids], #ids)
end
return {#ids, more and last or ""}

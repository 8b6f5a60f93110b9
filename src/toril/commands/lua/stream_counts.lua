--[[
  Counts the jobs of a stream queue by state.

  The lag is the server's own figure where it has one; otherwise the undelivered entries are counted, page by page.
  Entries that were given back wait as well, though an entry once delivered is no part of the lag.

  returned_consumer  the consumer that holds the entries that were given back
  Reply              { waiting, pending, scheduled, dead, entries in the stream, consumers }
]]
--@keys stream scheduled dlq
--@args consumer_group returned_consumer
--@own named_fields named_fields
local function undelivered(after)
  local number, page = 0, nil
  repeat
    page = redis.call("XRANGE", stream, "(" .. after, "+", "COUNT", 500)
    number = number + #page
    if #page > 0 then
      after = page[#page][1]
    end
  until #page == 0
  return number
end

local length = redis.call("XLEN", stream)
local lag, pending, consumers = length, 0, 0
local groups = redis.pcall("XINFO", "GROUPS", stream)
if not groups.err then
  for _, flat in ipairs(groups) do
    local info = named_fields(KEYS, ARGV, flat)
    if info["name"] == consumer_group then
      lag = info["lag"] or undelivered(info["last-delivered-id"])
      pending, consumers = info["pending"], info["consumers"]
    end
  end
end
if pending > 0 then
  for _, flat in ipairs(redis.call("XINFO", "CONSUMERS", stream, consumer_group)) do
    local info = named_fields(KEYS, ARGV, flat)
    if info["name"] == returned_consumer then
      lag, pending, consumers = lag + info["pending"], pending - info["pending"], consumers - 1
    end
  end
end
return {lag, pending, redis.call("ZCARD", scheduled), redis.call("XLEN", dlq), length, consumers}

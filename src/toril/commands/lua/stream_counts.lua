--[[
  How many jobs of a stream queue are where.

  The lag is the server's own figure where it has one; otherwise the undelivered entries are counted, page by page. What
  was given back waits as well, though an entry once delivered is no part of the lag.

  KEYS   1 stream, 2 scheduled, 3 dlq
  ARGV   1 group, 2 the consumer that has what was given back
  Reply  { waiting, pending, scheduled, dead, entries in the stream, consumers }
]]
--@own named_fields named_fields
local function undelivered(after)
  local number, page = 0, nil
  repeat
    page = redis.call("XRANGE", KEYS[1], "(" .. after, "+", "COUNT", 500)
    number = number + #page
    if #page > 0 then
      after = page[#page][1]
    end
  until #page == 0
  return number
end

local length = redis.call("XLEN", KEYS[1])
local lag, pending, consumers = length, 0, 0
local groups = redis.pcall("XINFO", "GROUPS", KEYS[1])
if not groups.err then
  for _, flat in ipairs(groups) do
    local info = named_fields(KEYS, ARGV, flat)
    if info["name"] == ARGV[1] then
      lag = info["lag"] or undelivered(info["last-delivered-id"])
      pending, consumers = info["pending"], info["consumers"]
    end
  end
end
if pending > 0 then
  for _, flat in ipairs(redis.call("XINFO", "CONSUMERS", KEYS[1], ARGV[1])) do
    local info = named_fields(KEYS, ARGV, flat)
    if info["name"] == ARGV[2] then
      lag, pending, consumers = lag + info["pending"], pending - info["pending"], consumers - 1
    end
  end
end
return {lag, pending, redis.call("ZCARD", KEYS[2]), redis.call("XLEN", KEYS[3]), length, consumers}

--[[
  Renews the entries that a worker is processing: their idle time starts again, their number of deliveries stays.

  XCLAIM alone would take an entry back from a consumer that has claimed it meanwhile; so its owner is read first.

  Reply  the entry ids that do not belong to this consumer any more
]]
--@keys stream
--@args consumer_group consumer
--@each entry_id deliveries
local lost = {}
for at = FIRST_ITEM, #ARGV, ITEM_SIZE do
  local id = ARGV[at + ENTRY_ID]
  local found = redis.call("XPENDING", stream, consumer_group, id, id, 1)[1]
  if found and found[2] == consumer and tostring(found[4]) == ARGV[at + DELIVERIES] then
    redis.call("XCLAIM", stream, consumer_group, consumer, 0, id, "JUSTID")
  else
    lost[#lost + 1] = id
  end
end
return lost

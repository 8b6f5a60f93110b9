--[[
  Renews our hold on stream entries in hand: their idle time starts again, their deliveries stay.

  A plain XCLAIM would take an entry back from a consumer that has claimed it meanwhile; so we look first.

  KEYS   1 stream
  ARGV   1 group, 2 consumer, then entry id and deliveries of each job
  Reply  the entry ids that are not ours any more
]]
local group, consumer = ARGV[1], ARGV[2]
local lost = {}
for at = 3, #ARGV, 2 do
  local id = ARGV[at]
  local found = redis.call("XPENDING", KEYS[1], group, id, id, 1)[1]
  if found and found[2] == consumer and tostring(found[4]) == ARGV[at + 1] then
    redis.call("XCLAIM", KEYS[1], group, consumer, 0, id, "JUSTID")
  else
    lost[#lost + 1] = id
  end
end
return lost

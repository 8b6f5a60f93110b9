--[[
  Takes dead letters out of their queue, each once, and gives their jobs another life.

  A letter that is gone was replayed or purged before: nothing happens. So a replay can be repeated at will.

  KEYS   1 dlq, 2 list or stream, 3 totals
  ARGV   1 kind (list | stream | none: only remove), then letter id and envelope of each
  Reply  how many were moved
]]
--@own push envelope_push
local moved = 0
for at = 2, #ARGV, 2 do
  local id, envelope = ARGV[at], ARGV[at + 1]
  if #redis.call("XRANGE", KEYS[1], id, id) == 1 then
    if ARGV[1] ~= "none" then
      push(KEYS, ARGV, ARGV[1], KEYS[2], "", "", envelope)
    end
    redis.call("XDEL", KEYS[1], id)
    moved = moved + 1
  end
end
if moved > 0 then
  redis.pcall("HINCRBY", KEYS[3], ARGV[1] == "none" and "purged" or "replayed", moved)
end
return moved

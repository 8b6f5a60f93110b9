--[[
  Takes dead letters out of the dead-letter queue, each once, and adds their envelopes to the queue again.

  A dead letter that does not exist was replayed or purged before and is passed over: a replay can be repeated.

  jobs   the list or stream
  kind   list, stream, or none: only remove
  Reply  how many were moved
]]
--@keys dlq jobs totals
--@args kind
--@each entry_id envelope
--@own push envelope_push
local moved = 0
for at = FIRST_ITEM, #ARGV, ITEM_SIZE do
  local id = ARGV[at + ENTRY_ID]
  if #redis.call("XRANGE", dlq, id, id) == 1 then
    if kind ~= "none" then
      push(KEYS, ARGV, kind, jobs, "", "", ARGV[at + ENVELOPE])
    end
    redis.call("XDEL", dlq, id)
    moved = moved + 1
  end
end
if moved > 0 then
  redis.pcall("HINCRBY", totals, kind == "none" and "purged" or "replayed", moved)
end
return moved

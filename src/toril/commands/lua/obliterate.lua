--[[
  Destroys up to N jobs of a paused queue by the official body, and finally the queue itself.

  The last call takes the pause away with everything else, so that a repeated one, whose reply was lost, would be told
  that the queue is not paused. Where nothing is left there is nothing to refuse.

  KEYS   1 meta, 2 key base
  ARGV   1 how many jobs, 2 "force" to destroy active jobs too
  Reply  1 when some are left, 0 when none is, -1 when the queue is not paused, -2 when it has active jobs
]]
--@official destroy obliterate

local places = {
  "id", "wait", "paused", "active", "prioritized", "delayed", "waiting-children", "completed", "failed", "repeat",
}
local left = {KEYS[1]}
for _, name in ipairs(places) do
  left[#left + 1] = KEYS[2] .. name
end
if redis.call("EXISTS", unpack(left)) == 0 then
  return 0
end
return destroy(KEYS, ARGV)

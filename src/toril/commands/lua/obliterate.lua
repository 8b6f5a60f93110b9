--[[
  Removes up to `limit` jobs of a paused queue by the official script, and finally the queue itself.

  The last call removes the pause with everything else. A repeated call, whose reply was lost, would then be refused
  because the queue is not paused; so a queue of which nothing is left is not refused.

  force  "force" to remove active jobs too
  Reply  1 when some are left, 0 when none is, -1 when the queue is not paused, -2 when it has active jobs
]]
--@keys meta base
--@args limit force
--@official obliterate obliterate

local suffixes = {
  "id", "wait", "paused", "active", "prioritized", "delayed", "waiting-children", "completed", "failed", "repeat",
}
local left = {meta}
for _, suffix in ipairs(suffixes) do
  left[#left + 1] = base .. suffix
end
if redis.call("EXISTS", unpack(left)) == 0 then
  return 0
end
return obliterate(KEYS, ARGV)

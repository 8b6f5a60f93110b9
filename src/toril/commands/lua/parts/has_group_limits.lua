--[[
  Part of the scripts that fetch jobs: whether a group of the queue has limits, is paused, or still holds jobs because
  it was.
]]
--@args base
local own = base .. "toril:group"
return redis.call("EXISTS", own .. "-limits", own .. "-paused", own .. "-holding") > 0

--[[
  Tells whether jobs are active. The list of active jobs is read once, and only if it is needed.

  Returns  a function that takes the id of a job
]]
--@keys active
local is_active

return function(id)
  if not is_active then
    is_active = {}
    for _, one in ipairs(redis.call("LRANGE", active, 0, -1)) do
      is_active[one] = true
    end
  end
  return is_active[id]
end

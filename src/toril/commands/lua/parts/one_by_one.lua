--[[
  Handles many jobs in one step; if a script raises at one of them, each job alone. Another program may have stored
  something else where a script expects the hash of a job, its parent or its deduplication: such a job is left, and the
  others are handled. A job that was handled before the script raised is handled again, which must change nothing.

  ...      ids, the function: it takes ids, and returns those that it has handled
  Returns  the ids that were handled, those at which the function raises
]]
--@own is_data_error is_data_error
local ids, handle = ...
local handled, left = {}, {}

-- Returns whether the function did not raise.
local function try(some)
  local ok, done = pcall(handle, some)
  if not ok and not is_data_error(KEYS, ARGV, done) then
    error(done, 0)
  end
  for _, id in ipairs(ok and done or {}) do
    handled[#handled + 1] = id
  end
  return ok
end

if not try(ids) then
  for _, id in ipairs(ids) do
    if not try({id}) then
      left[#left + 1] = id
    end
  end
end
return handled, left

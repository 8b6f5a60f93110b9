--[[
  Part of `add_jobs.lua`, `add_flow.lua` and `settle.lua`: the server's message when it accepts no writes at all, found in
  the text of an error; nothing for any other error. A server never refuses in the middle of a script.
]]
local text = ...
for _, beginning in ipairs({"READONLY You", "OOM command", "MISCONF ", "NOREPLICAS "}) do
  local from = string.find(text, beginning, 1, true)
  if from then
    return string.sub(text, from)
  end
end

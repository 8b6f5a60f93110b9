--[[
  Whether an error that pcall has caught is about stored data: a key of another type, or a text where a number is
  expected. Every other error, such as a missing right, concerns the whole call.
]]
--@own error_text error_text
local text = error_text(KEYS, ARGV, ...)
for _, part in ipairs({"WRONGTYPE ", "not an integer", "not a valid float", "attempt to "}) do
  if string.find(text, part, 1, true) then
    return true
  end
end
return false

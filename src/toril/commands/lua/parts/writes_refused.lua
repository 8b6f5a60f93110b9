-- What the server says when it takes no writes at all, if a text says so; it never does in the middle of a script.
local text = ...
for _, words in ipairs({"READONLY You", "OOM command", "MISCONF ", "NOREPLICAS "}) do
  local from = string.find(text, words, 1, true)
  if from then
    return string.sub(text, from)
  end
end

-- A flat reply of names and values as a table by name.
local flat = ...
local fields = {}
for at = 1, #flat, 2 do
  fields[flat[at]] = flat[at + 1]
end
return fields

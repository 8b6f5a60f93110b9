-- The envelope of a stream entry, or all of its fields if there is none.
local fields = ...
for at = 1, #fields, 2 do
  if fields[at] == "envelope" then
    return fields[at + 1]
  end
end
return fields

--[[
  Reads fields of a job that are short enough. The length is asked for first, so that a long value is never copied.

  ...      the job's hash, names of fields, longest value, how many bytes may be read in all
  Returns  a value for each field (text, the length of one that is too long, or false for none), bytes read
]]
local hash, names, longest, most = ...
local values, wanted, places, read, is_hash = {}, {}, {}, 0, true
for at, name in ipairs(names) do
  local length = redis.pcall("HSTRLEN", hash, name)
  -- Another program may have stored something else than a hash: such a job has no fields.
  if type(length) == "table" then
    length = 0
    is_hash = false
  end
  if length > longest or read + length > most then
    values[at] = length
  else
    read = read + length
    values[at] = false
    wanted[#wanted + 1], places[#places + 1] = name, at
  end
end
if #wanted > 0 and is_hash then
  for at, value in ipairs(redis.call("HMGET", hash, unpack(wanted))) do
    values[places[at]] = value
  end
end
return values, read

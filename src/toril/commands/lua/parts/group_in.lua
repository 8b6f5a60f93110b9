--[[
  Part of the scripts that know the groups of jobs: returns the group in the options of a job, or nothing if there is none.
]]
local options = ...
if type(options) ~= "string" or not string.find(options, '"group":{', 1, true) then
  return
end
-- Most names need no decoding, which costs more than the rest.
local name = string.match(options, '"group":{"id":"([^"\\]*)"}')
if name then
  return name
end
local ok, read = pcall(cjson.decode, options)
local group = ok and type(read) == "table" and read["group"]
local decoded = type(group) == "table" and group["id"]
return decoded and tostring(decoded) or nil

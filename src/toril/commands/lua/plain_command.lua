--[[
  Runs one Redis command, for commands that are sent under a number (`parts/remember.lua`).

  arg    the command's name and arguments
  Reply  the command's reply
]]
--@keys key
--@each arg
return redis.call(unpack(ARGV))

--[[
  One plain command, for those that are called under a number (parts/remember.lua).

  KEYS   1 its key
  ARGV   its words
  Reply  its reply
]]
return redis.call(unpack(ARGV))

--[[
  A page of dead letters that is not too large, whatever a letter weighs. Changes nothing.

  KEYS   1 dlq
  ARGV   1 first and 2 last id, as XRANGE takes them (as XREVRANGE does, for the newest first), 3 how many at most,
         4 how many bytes at most (one letter is always given), 5 "1" for the newest first
  Reply  { letters as XRANGE gives them, 1 if there may be more }
]]
--@own entries_page entries_page
local command = ARGV[5] == "1" and "XREVRANGE" or "XRANGE"
local most, bytes = tonumber(ARGV[3]), tonumber(ARGV[4])
local letters, more = entries_page(KEYS, ARGV, KEYS[1], command, ARGV[1], ARGV[2], most, bytes)
return {letters, more and 1 or 0}

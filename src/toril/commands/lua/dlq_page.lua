--[[
  Reads a page of dead letters of bounded size. Changes nothing.

  first_id, last_id  as XRANGE takes them; as XREVRANGE takes them for the newest first
  max_bytes          the page is about this large; one dead letter is always returned
  newest_first       "1" for the newest first
  Reply              { entries as XRANGE returns them, 1 if there may be more }
]]
--@keys dlq
--@args first_id last_id limit max_bytes newest_first
--@own entries_page entries_page
local command = newest_first == "1" and "XREVRANGE" or "XRANGE"
local entries, more = entries_page(KEYS, ARGV, dlq, command, first_id, last_id, tonumber(limit), tonumber(max_bytes))
return {entries, more and 1 or 0}

--[[
  Reads a page of the envelopes of a list, a stream or a sorted set, of bounded size, or searches it. Changes nothing.

  jobs       the list, stream or sorted set
  kind       list, stream or set
  newest     "1" for the newest first
  after      the position after which the page begins: the number of envelopes before it in a list or set, the id of the
             last entry of a stream; "" for the first page
  limit      how many envelopes are examined
  head, tail of a longer envelope only so many of its first and last bytes are returned
  max_bytes  the page ends after so many bytes were read; one envelope is always examined
  max_found  the page ends after so many envelopes
  longest    of a longer envelope, so many of its first and last bytes are searched
  needle     only envelopes that have this text in lower case (ASCII) are returned; "" for any
  Reply      { number of envelopes, { { position, score or "", length, first bytes, last bytes } … }, examined, position
               of the last one that was examined, 1 if no envelope follows it }
]]
--@keys jobs
--@args kind newest after limit head tail max_bytes max_found longest needle
local most, wanted, first_bytes, last_bytes = tonumber(max_bytes), tonumber(limit), tonumber(head), tonumber(tail)
local most_found, searched = tonumber(max_found), tonumber(longest)
local is_newest = newest == "1"
local rows, size, examined, is_end = {}, 0, 0, 0

local function has_needle(text)
  if #text > 2 * searched then
    text = string.sub(text, 1, searched) .. string.sub(text, -searched)
  end
  return needle == "" or string.find(string.lower(text), needle, 1, true) ~= nil
end

local function row(position, score, text)
  if #text <= first_bytes + last_bytes then
    return {position, score, #text, text, ""}
  end
  return {position, score, #text, string.sub(text, 1, first_bytes), string.sub(text, -last_bytes)}
end

-- Each source returns the next envelope as position, score and text.
local function from_list(at)
  local text = redis.call("LINDEX", jobs, is_newest and at or -at - 1)
  return text and tostring(at + 1), "", text
end

local function from_set(at)
  local pair = redis.call(is_newest and "ZREVRANGE" or "ZRANGE", jobs, at, at, "WITHSCORES")
  return pair[1] and tostring(at + 1), pair[2], pair[1]
end

local function from_stream(_, last)
  local command, open, close = "XRANGE", "-", "+"
  if is_newest then
    command, open, close = "XREVRANGE", "+", "-"
  end
  local entry = redis.call(command, jobs, last ~= "" and "(" .. last or open, close, "COUNT", 1)[1]
  if not entry then
    return nil
  end
  -- The envelope is the value of the entry's only field; of another program's entry it is the last value.
  return entry[1], "", entry[2][#entry[2]] or ""
end

local sources = {list = from_list, set = from_set, stream = from_stream}
local lengths = {list = "LLEN", set = "ZCARD", stream = "XLEN"}
local at, last = kind ~= "stream" and tonumber(after) or 0, after
while examined < wanted and #rows < most_found and (size < most or examined == 0) do
  local position, score, text = sources[kind](at, last)
  if not position then
    is_end = 1
    break
  end
  size, examined = size + #text, examined + 1
  if has_needle(text) then
    rows[#rows + 1] = row(position, score or "", text)
  end
  at, last = at + 1, position
end
local total = redis.call(lengths[kind], jobs)
if (kind ~= "stream" or after == "") and at >= total then
  is_end = 1
end
return {total, rows, examined, last, is_end}

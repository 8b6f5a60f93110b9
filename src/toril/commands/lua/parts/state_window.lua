--[[
  Reads ids of a state from a position, without reading those before it.

  Jobs come and go between two calls. A position therefore has the last id that was read besides its place: the place of
  that id now is where the next window begins. If the id is gone, a sorted set is continued where the id was (ids of the
  same score are in alphabetical order), and a list by the place.

  ...      key, is it a list (or a sorted set), newest first, place, last id, its score, how many ids
  Returns  ids, their scores (an empty table for a list), the place of the first
]]
local key, is_list, newest, place, last_id, last_score, count = ...
-- How far the place of an id in a list may have moved since it was read.
local NEAR = 500

local function place_in_set()
  local rank = redis.call(newest and "ZREVRANK" or "ZRANK", key, last_id)
  if rank then
    return rank + 1
  end
  -- The number of ids before it: those of lower scores, and those of its score that come earlier in the alphabet.
  local low = redis.call("ZCOUNT", key, "-inf", "(" .. last_score)
  local high = redis.call("ZCOUNT", key, "-inf", last_score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if redis.call("ZRANGE", key, middle, middle)[1] < last_id then
      low = middle + 1
    else
      high = middle
    end
  end
  return newest and redis.call("ZCARD", key) - low or low
end

local function from_list(first, amount)
  if newest then
    return redis.call("LRANGE", key, first, first + amount - 1)
  end
  local reversed, ids = redis.call("LRANGE", key, -first - amount, -first - 1), {}
  for at = #reversed, 1, -1 do
    ids[#ids + 1] = reversed[at]
  end
  return ids
end

local function place_in_list()
  local first = math.max(0, place - 1 - NEAR)
  local found
  for at, id in ipairs(from_list(first, 2 * NEAR + 1)) do
    local here = first + at
    if id == last_id and (not found or math.abs(here - place) < math.abs(found - place)) then
      found = here
    end
  end
  return found or place
end

if last_id ~= "" then
  place = is_list and place_in_list() or (not is_list and place_in_set()) or place
end
if is_list then
  return from_list(place, count), {}, place
end
local flat = redis.call(newest and "ZREVRANGE" or "ZRANGE", key, place, place + count - 1, "WITHSCORES")
local ids, scores = {}, {}
for at = 1, #flat, 2 do
  ids[#ids + 1], scores[#scores + 1] = flat[at], flat[at + 1]
end
return ids, scores, place

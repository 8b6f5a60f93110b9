--[[
  A page of dead letters that is not too large, whatever a letter weighs. Changes nothing.

  KEYS   1 dlq
  ARGV   1 first and 2 last id, as XRANGE takes them (as XREVRANGE does, for the newest first), 3 how many at most,
         4 how many bytes at most (one letter is always given), 5 "1" for the newest first
  Reply  { letters as XRANGE gives them, 1 if there may be more }
]]
local from, to, most, bytes = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local command = ARGV[5] == "1" and "XREVRANGE" or "XRANGE"

local letters, weight, step = {}, 0, 1
while #letters < most and (weight < bytes or #letters == 0) do
  local asked = math.min(step, most - #letters)
  local page = redis.call(command, KEYS[1], from, to, "COUNT", asked)
  for _, letter in ipairs(page) do
    letters[#letters + 1] = letter
    for _, word in ipairs(letter[2]) do
      weight = weight + #word
    end
  end
  if #page < asked then
    return {letters, 0}
  end
  from = "(" .. page[#page][1]
  -- As many as the rest has room for, if they are like those before.
  step = math.max(1, math.min(2 * step, math.floor((bytes - weight) * #letters / math.max(weight, 1))))
end
return {letters, 1}

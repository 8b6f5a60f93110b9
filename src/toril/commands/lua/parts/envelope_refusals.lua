--[[
  Refuses envelopes of unknown names. Only what matters is read of them: a payload may be large.

  Envelopes that need more stay where they are, for a fetch to decide: those that are not in the canonical form, that
  have no attempt left, or that were refused for too long.

  max_attempts  of the worker; "": each envelope's own
  meta_field    of `meta`, for the note about refusals
  ...           what `unknown_names` returns
  Returns       a function that takes an envelope and returns its task type, the envelope with the note, and its delay
                (ms); nothing when it stays
]]
--@args max_attempts meta_field
local names = ...
local most_attempts = tonumber(max_attempts)
local find, match, sub = string.find, string.match, string.sub
local START = '^{"job_id":"[^"\\]+","task_type":"([^"\\]+)","attempts":(%d+),"max_attempts":(%d+),"payload":{'
local META = ',"meta":'
-- Fields of `meta` without braces: what comes next ends `meta` for certain.
local PLAIN = '^{"correlation_id":"[^"]+","user_id":[^,]*,"enqueue_ts":"[^"]+","source":"[^"]+"[^{}]*()'
local NOTE = ',"' .. meta_field .. '":'

-- The place of the last `meta`: a payload may have such a field as well.
local function find_meta(envelope)
  local found, next_one = nil, find(envelope, META, 1, true)
  while next_one do
    found, next_one = next_one + #META, find(envelope, META, next_one + 1, true)
  end
  return found
end

local function is_meta(fields)
  local ok, meta = pcall(cjson.decode, fields .. "}")
  return ok and type(meta) == "table" and type(meta.correlation_id) == "string" and type(meta.enqueue_ts) == "string" and
    type(meta.source) == "string"
end

-- Where the note begins, or would begin: it is the last field of `meta`, as `meta` is of the envelope. Nothing when that
-- is not certain. And what the note says.
local function find_note(envelope)
  local meta = find_meta(envelope)
  if not meta or sub(envelope, -2) ~= "}}" then
    return
  end
  local place, count, first = find(envelope, NOTE, meta, true), nil, nil
  if place then
    count, first = match(envelope, '^{"count":(%d+),"first_ms":(%d+)}}}$', place + #NOTE)
    if not first then
      return
    end
  end
  place = place or #envelope - 1
  local plain_until = match(envelope, PLAIN, meta)
  if plain_until and plain_until >= place or is_meta(sub(envelope, meta, place - 1)) then
    return place, tonumber(count), tonumber(first)
  end
end

local function note_of(count, first)
  return string.format('%s{"count":%.0f,"first_ms":%.0f}}}', NOTE, count, first)
end

local count_now, first_now, first_delay = names.refuse()
local first_note = note_of(count_now, first_now)

return function(envelope)
  local task, attempts, limit = match(envelope, START)
  if not task or names.is_known[task] then
    return
  elseif attempts ~= "0" and tonumber(attempts) >= (most_attempts or tonumber(limit)) then
    return
  end
  local place, count, first = find_note(envelope)
  if not place then
    return
  elseif not first then
    return task, sub(envelope, 1, place - 1) .. first_note, first_delay
  end
  local delay
  count, first, delay = names.refuse(count, first)
  if count then
    return task, sub(envelope, 1, place - 1) .. note_of(count, first), delay
  end
end

--[[
  Removes a bounded number of the jobs that waited when the drain began; the next call goes on where this one stopped.

  The official body removes the jobs, with everything that belongs to them: it is given a list that holds these jobs only.
  What stays is decided here. Upstream filters out the next runs of schedulers and then cuts the list by the number of
  removed jobs, so that a run may lose its place while the id of a removed job stays; here each run keeps its place.

  Jobs that arrived after the drain began stay. The events tell which: whatever enters a list is announced there, in the
  same step. Places in lists and scores of sets only tell where to go on. When events were trimmed before they were read,
  lists go on: new jobs enter on the left, behind the place that the drain has reached, or, with the option `lifo` or
  after an attempt, on the right, where all that may be such a job stays. Prioritized jobs are numbered as they enter, by a
  counter that begins anew only when there is none. Delayed jobs have no such order, and are left alone.

  KEYS   1 wait, 2 paused, 3 delayed, 4 prioritized, 5 repeat, 6 events, 7 jobs of this step, 8 arrivals, 9 counter of
         prioritized jobs
  ARGV   1 key base, 2 how many jobs to look at, 3 "1" to remove delayed jobs, too, 4 how long (ms) arrivals are kept,
         5 where the last call stopped, "" in the first one
  Reply  { how many were removed, where this call stopped, or "" at the end, 1 when delayed jobs may have been left alone }
]]
--@official removeAll drain
--@own named_fields named_fields

local base, most, life = ARGV[1], tonumber(ARGV[2]), ARGV[4]
local LAST_LIST, LAST_PLACE = 2, 4
-- Events read in one call; one that has not read them all removes nothing.
local PAGE, PAGES = 1000, 5
-- Jobs by which the place in a list is found again: any of them may have been removed meanwhile.
local SIGHTS = 4
-- Stands in for those who leave a list, so that one pass takes them all out.
local GONE = "0:gone"
-- The score of a prioritized job is its priority times this, and its number.
local NUMBERS = 0x100000000
local ARRIVED = {added = true, waiting = true, delayed = true}

-- --- what arrived since the drain began --------------------------------------------------------------------------

local function last_event()
  local last = redis.call("XREVRANGE", KEYS[6], "+", "-", "COUNT", 1)[1]
  return last and last[1] or "-"
end

-- How many events were ever written, as far as the server counts them.
local function written()
  local info = redis.pcall("XINFO", "STREAM", KEYS[6])
  return info.err and 0 or named_fields(KEYS, ARGV, info)["entries-added"] or 0
end

local function arrival(fields)
  local named = {}
  for at = 1, #fields, 2 do
    named[fields[at]] = fields[at + 1]
  end
  return ARRIVED[named["event"]] and named["jobId"]
end

-- Reads on in the events; false when there are more than one call reads.
local function learn(state)
  for _ = 1, PAGES do
    local page = redis.call("XRANGE", KEYS[6], state.seen, "+", "COUNT", PAGE)
    if state.seen == "-" then
      state.blind = state.blind or written() - state.written > redis.call("XLEN", KEYS[6])
    elseif not (page[1] and page[1][1] == state.seen) then
      state.blind = true
    end
    local ids = {}
    for _, entry in ipairs(page) do
      ids[#ids + 1] = entry[1] ~= state.seen and arrival(entry[2]) or nil
    end
    if #ids > 0 then
      redis.call("SADD", KEYS[8], unpack(ids))
    end
    state.seen = page[1] and page[#page][1] or state.seen
    if #page < PAGE then
      return true
    end
  end
  return false
end

-- --- what stays ----------------------------------------------------------------------------------------------------

local function is_next_run(id)
  local key, moment = string.match(id, "^repeat:(.*):(%d+)$")
  if not moment then
    return false
  end
  key = redis.call("HGET", base .. id, "rjk") or key
  return redis.call("ZSCORE", KEYS[5], key) == moment
end

-- Whether a job may have entered a list on the right.
local function may_be_new(id)
  local job = redis.call("HMGET", base .. id, "opts", "ats")
  return job[2] or (job[1] and string.find(job[1], '"lifo":true', 1, true))
end

-- For each job whether it leaves.
local function judged(ids, blind)
  local leaves = {}
  local arrived = #ids > 0 and redis.call("SMISMEMBER", KEYS[8], unpack(ids)) or {}
  for at, id in ipairs(ids) do
    leaves[at] = arrived[at] == 0 and not is_next_run(id) and not (blind and may_be_new(id))
  end
  return leaves
end

-- --- lists: from the newest job to the oldest, as upstream goes ----------------------------------------------------

local function find(sights)
  for _, id in ipairs(sights) do
    for _, list in ipairs({KEYS[1], KEYS[2]}) do -- a pause or its end moves them from one to the other
      local at = redis.call("LPOS", list, id)
      if at then
        return list, at
      end
    end
  end
end

-- Takes jobs out of a list; gives them, and where to go on, or nothing at its end.
local function from_list(key, where, blind)
  local list, at = find(where.sights)
  if not list then
    -- Taken by workers, or removed by somebody else: a look at all that is left, once.
    if where.again or blind then
      return {}
    end
    local other = key == KEYS[1] and KEYS[2] or KEYS[1]
    list, at, where.again = redis.call("EXISTS", key) == 1 and key or other, 0, true
  end
  local ids = redis.call("LRANGE", list, at, at + most - 1)
  local leaving = {}
  for place, leaves in ipairs(judged(ids, blind)) do
    if leaves then
      redis.call("LSET", list, at + place - 1, GONE)
      leaving[#leaving + 1] = ids[place]
    end
  end
  if #leaving > 0 then
    redis.call("LREM", list, #leaving, GONE)
  end
  if #ids < most then
    return leaving
  end
  local next_at = at + #ids - #leaving
  where.sights = redis.call("LRANGE", list, next_at, next_at + SIGHTS - 1)
  return leaving, where
end

-- --- sets: in their order ----------------------------------------------------------------------------------------

local function is_before(score, id, other)
  local one, another = tonumber(score), tonumber(other.score)
  return one < another or (one == another and id < other.id)
end

-- The members after the place that was reached, and whether the last one of the beginning is yet to come.
local function page_of(key, where)
  local ids, offset, page = {}, 0, nil
  repeat
    page = redis.call("ZRANGEBYSCORE", key, where.score, "+inf", "WITHSCORES", "LIMIT", offset, most)
    for at = 1, #page, 2 do
      local id, score = page[at], page[at + 1]
      if is_before(score, id, where.last) or id == where.last.id then
        if is_before(where.score, where.id, {score = score, id = id}) then
          ids[#ids + 1] = id
        end
      else
        return ids, false
      end
    end
    offset = offset + #page / 2
  until #ids > 0 or #page == 0
  where.score, where.id = page[#page], page[#page - 1]
  return ids, #page == 2 * most
end

-- Whether the numbers of prioritized jobs tell the order in which they entered: the last one never left.
local function is_numbered(key, where)
  return key == KEYS[4] and redis.call("ZSCORE", key, where.last.id) == where.last.score
end

local function from_set(key, where, blind)
  if not where.last or (blind and not is_numbered(key, where)) then
    return {}
  end
  local ids, more = page_of(key, where)
  local leaving = {}
  for at, leaves in ipairs(judged(ids)) do
    local is_new = blind and redis.call("ZSCORE", key, ids[at]) % NUMBERS > where.number
    leaving[#leaving + 1] = leaves and not is_new and ids[at] or nil
  end
  if #leaving > 0 then
    redis.call("ZREM", key, unpack(leaving))
  end
  return leaving, more and where or nil
end

-- --- one step ------------------------------------------------------------------------------------------------------

local function begun()
  local state = {seen = last_event(), written = written(), place = 1, where = {}}
  for place = 1, LAST_LIST do
    state.where[place] = {sights = redis.call("LRANGE", KEYS[place], 0, SIGHTS - 1)}
  end
  for place = LAST_LIST + 1, LAST_PLACE do
    local last = redis.call("ZREVRANGE", KEYS[place], 0, 0, "WITHSCORES")
    state.where[place] = {score = "-inf", id = "", last = last[1] and {score = last[2], id = last[1]}}
  end
  state.where[LAST_PLACE].number = (tonumber(redis.call("GET", KEYS[9]) or "") or 0) % NUMBERS
  return state
end

-- Takes jobs out of the place that was reached; at its end the next one is.
local function take_out(state)
  local place = state.place
  local from = place <= LAST_LIST and from_list or from_set
  local leaving, where = from(KEYS[place], state.where[place], state.blind)
  if where then
    state.where[place] = where
  else
    local passed_over = place == LAST_LIST and ARGV[3] ~= "1"
    state.place = place + (passed_over and 2 or 1)
  end
  return leaving
end

-- First, because a full server lets nobody begin with a write that needs memory.
redis.call("PEXPIRE", KEYS[8], life)
local state = ARGV[5] == "" and begun() or cmsgpack.unpack(ARGV[5])
if not learn(state) then
  return {0, cmsgpack.pack(state), 0}
end
redis.call("PEXPIRE", KEYS[8], life)

local leaving, place
repeat
  place = state.place
  leaving = take_out(state)
until #leaving > 0 or state.place == place or state.place > LAST_PLACE
if #leaving > 0 then
  redis.call("RPUSH", KEYS[7], unpack(leaving))
  local none = KEYS[7] .. ":none"
  removeAll({KEYS[7], none, none, none, none}, {base, "0"})
end
if state.place > LAST_PLACE then
  redis.call("DEL", KEYS[8])
  return {#leaving, "", state.blind and ARGV[3] == "1" and 1 or 0}
end
return {#leaving, cmsgpack.pack(state), 0}

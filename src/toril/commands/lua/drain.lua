--[[
  Removes a bounded number of the jobs that waited when the drain began; the next call goes on where this one stopped.

  The official script removes the jobs, with everything that belongs to them: it is given a list that holds these jobs
  only. This script decides which jobs stay. Upstream filters out the next runs of schedulers and then cuts the list by
  the number of removed jobs, so that a run may lose its place while the id of a removed job stays; here each run keeps
  its place.

  Jobs that arrived after the drain began stay. They are known from the events: every job that enters a list is announced
  there in the same step. Places in lists and scores of sets only serve to go on. When events were trimmed before they
  were read, the drain goes on in lists: new jobs enter on the left, behind the place that the drain has reached, or,
  with the option `lifo` or after an attempt, on the right, where every job stays that may be a new one. Prioritized
  jobs are numbered as they enter, by a counter that begins anew only when there is none. Delayed jobs have no such order,
  and no more of them are removed.

  work_list       a temporary list for the official script
  arrivals        ids of jobs that arrived since the drain began
  pc              the counter of prioritized jobs
  limit           how many jobs to look at
  remove_delayed  "1" to remove delayed jobs, too
  arrivals_ms     how long arrivals are kept
  cursor          where the last call stopped, "" in the first one
  Reply           { how many were removed, where this call stopped, or "" at the end, 1 when delayed jobs may be left,
                    ids of jobs that cannot be removed }
]]
--@keys wait paused delayed prioritized repeat_set events work_list arrivals pc
--@args base limit remove_delayed arrivals_ms cursor
--@official drain_list drain
--@own drop_next drop_next
--@own named_fields named_fields
--@own one_by_one one_by_one

local max_jobs = tonumber(limit)
-- The places of jobs in the order of the drain: lists first, then sets.
local PLACES, LAST_LIST = {wait, paused, delayed, prioritized}, 2
-- Events read in one call; one that has not read them all removes nothing.
local PAGE, PAGES = 1000, 5
-- Jobs by which the place in a list is found again: any of them may have been removed meanwhile.
local LANDMARKS = 4
-- Replaces the jobs that leave a list, so that one pass removes them all.
local GONE = "0:gone"
-- The score of a prioritized job is its priority times this, and its number.
local NUMBERS = 0x100000000
local ARRIVED = {added = true, waiting = true, delayed = true}

-- --- which jobs arrived since the drain began ------------------------------------------------------------------------

local function last_event()
  local last = redis.call("XREVRANGE", events, "+", "-", "COUNT", 1)[1]
  return last and last[1] or "-"
end

-- How many events were ever written, as far as the server counts them.
local function count_written()
  local info = redis.pcall("XINFO", "STREAM", events)
  return info.err and 0 or named_fields(KEYS, ARGV, info)["entries-added"] or 0
end

local function arrival(fields)
  local named = named_fields(KEYS, ARGV, fields)
  return ARRIVED[named["event"]] and named["jobId"]
end

-- Reads on in the events; false when there are more than one call reads.
local function read_events(state)
  for _ = 1, PAGES do
    local page = redis.call("XRANGE", events, state.seen, "+", "COUNT", PAGE)
    if state.seen == "-" then
      state.trimmed = state.trimmed or count_written() - state.written > redis.call("XLEN", events)
    elseif not (page[1] and page[1][1] == state.seen) then
      state.trimmed = true
    end
    local ids = {}
    for _, entry in ipairs(page) do
      ids[#ids + 1] = entry[1] ~= state.seen and arrival(entry[2]) or nil
    end
    if #ids > 0 then
      redis.call("SADD", arrivals, unpack(ids))
    end
    state.seen = page[1] and page[#page][1] or state.seen
    if #page < PAGE then
      return true
    end
  end
  return false
end

-- --- which jobs stay -------------------------------------------------------------------------------------------------

local function is_next_run(id)
  local key, run_ms = string.match(id, "^repeat:(.*):(%d+)$")
  if not run_ms then
    return false
  end
  local stored = redis.pcall("HGET", base .. id, "rjk")
  key = type(stored) == "string" and stored or key
  return redis.call("ZSCORE", repeat_set, key) == run_ms
end

-- Whether a job may have entered a list on the right.
local function may_be_new(id)
  local job = redis.pcall("HMGET", base .. id, "opts", "ats")
  return job[2] or (job[1] and string.find(job[1], '"lifo":true', 1, true))
end

-- For each job whether it leaves.
local function which_leave(ids, trimmed)
  local leave = {}
  local arrived = #ids > 0 and redis.call("SMISMEMBER", arrivals, unpack(ids)) or {}
  for at, id in ipairs(ids) do
    leave[at] = arrived[at] == 0 and not is_next_run(id) and not (trimmed and may_be_new(id))
  end
  return leave
end

-- --- how jobs are removed ---------------------------------------------------------------------------------------------

local cannot_be_removed = {}

-- Removes jobs by the official script; returns for each id whether it is gone. Their lists and sets are not changed.
local function remove(ids)
  if #ids == 0 then
    return {}
  end
  local drop = drop_next(KEYS, ARGV, base, ids)
  local none = work_list .. ":none"
  local removed, left = one_by_one(KEYS, ARGV, ids, function(some)
    redis.call("DEL", work_list)
    redis.call("RPUSH", work_list, unpack(some))
    drain_list({work_list, none, none, none, none}, {base, "0"})
    return some
  end)
  redis.call("DEL", work_list)
  drop()
  for _, id in ipairs(left) do
    cannot_be_removed[#cannot_be_removed + 1] = id
  end
  local gone = {}
  for _, id in ipairs(removed) do
    gone[id] = true
  end
  return gone
end

-- --- lists: from the newest job to the oldest, as upstream goes ------------------------------------------------------

local function find(landmarks)
  for _, id in ipairs(landmarks) do
    for _, list in ipairs({wait, paused}) do -- a pause or its end moves them from one to the other
      local at = redis.call("LPOS", list, id)
      if at then
        return list, at
      end
    end
  end
end

-- Removes jobs of a list; returns how many, and where to go on, or nothing at its end.
local function from_list(key, where, trimmed)
  local list, at = find(where.landmarks)
  if not list then
    -- Fetched by workers, or removed by another client: all jobs that are left are looked at, once.
    if where.again or trimmed then
      return 0
    end
    local other = key == wait and paused or wait
    list, at, where.again = redis.call("EXISTS", key) == 1 and key or other, 0, true
  end
  local ids = redis.call("LRANGE", list, at, at + max_jobs - 1)
  local leave, leaving = which_leave(ids, trimmed), {}
  for place, id in ipairs(ids) do
    leaving[#leaving + 1] = leave[place] and id or nil
  end
  local gone, removed = remove(leaving), 0
  for place, id in ipairs(ids) do
    if leave[place] and gone[id] then
      redis.call("LSET", list, at + place - 1, GONE)
      removed = removed + 1
    end
  end
  if removed > 0 then
    redis.call("LREM", list, removed, GONE)
  end
  if #ids < max_jobs then
    return removed
  end
  local next_at = at + #ids - removed
  where.landmarks = redis.call("LRANGE", list, next_at, next_at + LANDMARKS - 1)
  return removed, where
end

-- --- sets: in their order --------------------------------------------------------------------------------------------

local function is_before(score, id, other)
  local one, another = tonumber(score), tonumber(other.score)
  return one < another or (one == another and id < other.id)
end

-- The members after the place that was reached, and whether the last member of the beginning is yet to come.
local function page_of(key, where)
  local ids, offset, page = {}, 0, nil
  repeat
    page = redis.call("ZRANGEBYSCORE", key, where.score, "+inf", "WITHSCORES", "LIMIT", offset, max_jobs)
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
  return ids, #page == 2 * max_jobs
end

-- Whether the numbers of prioritized jobs are in the order in which they entered: the last one never left.
local function is_numbered(key, where)
  return key == prioritized and redis.call("ZSCORE", key, where.last.id) == where.last.score
end

local function from_set(key, where, trimmed)
  if not where.last or (trimmed and not is_numbered(key, where)) then
    return 0
  end
  local ids, more = page_of(key, where)
  local leaving = {}
  for at, leaves in ipairs(which_leave(ids)) do
    local is_new = trimmed and redis.call("ZSCORE", key, ids[at]) % NUMBERS > where.number
    leaving[#leaving + 1] = leaves and not is_new and ids[at] or nil
  end
  local gone, removed = remove(leaving), {}
  for _, id in ipairs(leaving) do
    removed[#removed + 1] = gone[id] and id or nil
  end
  if #removed > 0 then
    redis.call("ZREM", key, unpack(removed))
  end
  return #removed, more and where or nil
end

-- --- one step --------------------------------------------------------------------------------------------------------

local function begin()
  local state = {seen = last_event(), written = count_written(), place = 1, where = {}}
  for place = 1, LAST_LIST do
    state.where[place] = {landmarks = redis.call("LRANGE", PLACES[place], 0, LANDMARKS - 1)}
  end
  for place = LAST_LIST + 1, #PLACES do
    local last = redis.call("ZREVRANGE", PLACES[place], 0, 0, "WITHSCORES")
    state.where[place] = {score = "-inf", id = "", last = last[1] and {score = last[2], id = last[1]}}
  end
  state.where[#PLACES].number = (tonumber(redis.call("GET", pc) or "") or 0) % NUMBERS
  return state
end

-- Removes jobs of the place that was reached, and returns how many; at its end the next place is reached.
local function remove_some(state)
  local place = state.place
  local from = place <= LAST_LIST and from_list or from_set
  local removed, where = from(PLACES[place], state.where[place], state.trimmed)
  if where then
    state.where[place] = where
  else
    local skips_delayed = place == LAST_LIST and remove_delayed ~= "1"
    state.place = place + (skips_delayed and 2 or 1)
  end
  return removed
end

-- First, because a server without memory refuses scripts that begin with a write that needs memory.
redis.call("PEXPIRE", arrivals, arrivals_ms)
local state = cursor == "" and begin() or cmsgpack.unpack(cursor)
if not read_events(state) then
  return {0, cmsgpack.pack(state), 0, {}}
end
redis.call("PEXPIRE", arrivals, arrivals_ms)

local removed, place
repeat
  place = state.place
  removed = remove_some(state)
until removed > 0 or state.place == place or state.place > #PLACES
if state.place > #PLACES then
  redis.call("DEL", arrivals)
  return {removed, "", state.trimmed and remove_delayed == "1" and 1 or 0, cannot_be_removed}
end
return {removed, cmsgpack.pack(state), 0, cannot_be_removed}

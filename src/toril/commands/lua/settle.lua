--[[
  Settles a batch of finished jobs and takes up to N new ones, in one call.

  Each step leaves what the official script would leave when Node runs it with the same arguments, in the order given: a
  finish fetches the next job while there is room, then pickups fill what room is left. A step that raises (a poisoned
  hash, a wrong type) fails alone: the others are done, and what was taken before is handed out. Upstream's scripts would
  leave such a job half moved, or hand it out for ever; here it is buried among the failed ones, with the reason. When
  the server itself refuses to write, it does so before the first write: then the whole call is refused.

  Two ways lead there. Plain work goes the short way (`parts/settle_many.lua`): completed jobs without parent,
  children, deduplication, metrics or limits to keep, on a queue without pause, limit or rate. There the same keys are
  written with a third of the calls; a single job goes a still shorter way (`parts/settle_one.lua`). Several jobs that are
  delayed one after the other have their own short way (`parts/settle_delayed.lua`). Whatever is special goes through the
  official bodies (`parts/settle_official.lua`). The short ways look before they write, and leave to the long one what
  they had better not touch.

  A job that a finish fetched is locked by upstream under its predecessor's token; here it is under the pickup's, like
  all others of the call.

  KEYS   1 wait, 2 active, 3 prioritized, 4 events, 5 stalled, 6 limiter, 7 delayed, 8 paused, 9 meta, 10 pc, 11 marker,
         12 completed, 13 failed, 14 metrics:completed, 15 metrics:failed
  ARGV   1 key base, 2 now (ms), 3 how many to take, and how: 4 token, 5 life of the lock (ms), 6 name of the worker or
         "", 7 packed limiter or "", then six words for each settlement:
           id, kind, token, value, options, fields
           kind "completed" | "failed": value = result or reason, options = packed, fields = packed or "";
             options "" for a completed job that is kept for good and not counted in metrics: only such are plain
           kind "delayed": value = delay (ms), options = "1" to leave the attempt uncounted, fields = packed or ""
           kind "retry": value = push command, fields = packed or ""
           kind "wait": given back, attempt uncounted; value = how many of the jobs that go back
             with it were taken before it, or ""
  Reply  { codes, jobs, rate limit ttl (ms), next delayed job at (ms), error of the pickup or "" }
           codes: 0 when all is accepted, else a number for each settlement, or the text of its error
           jobs: { field, value, ..., id } for each job taken
]]
local FIRST, WORDS, LAST = 8, 6, #ARGV -- where settlements begin, how long each is, and where they end
local room = tonumber(ARGV[3])

--@own one settle_one
-- Room for one, on a queue without a rate, and nothing to settle or one plain job.
if room == 1 and ARGV[7] == ""
  and (LAST == 7 or (LAST == 13 and ARGV[9] == "completed" and ARGV[12] == "" and ARGV[13] == "")) then
  local reply = one(KEYS, ARGV)
  if reply then
    return reply
  end
end

--@own plainly settle_many
--@own delayed settle_delayed
--@own specially settle_official

-- What both ways share; `open` says whether there is room, and anything to fill it with.
local batch = {jobs = {}, codes = {}, room = room, open = room > 0, limited = 0, nextAt = 0}

function batch.textOf(failure)
  return type(failure) == "table" and failure.err or tostring(failure)
end

-- What the server says when it takes no writes at all; it never says so in the middle of a script.
function batch.refusesWrites(text)
  for _, words in ipairs({"READONLY You", "OOM command", "MISCONF ", "NOREPLICAS "}) do
    local from = string.find(text, words, 1, true)
    if from then
      return string.sub(text, from)
    end
  end
end

local trouble = "" -- why no more jobs can be taken
local special -- made only when it is needed

local at = FIRST
while at <= LAST or batch.open do
  batch.begun = nil
  local fine, done = pcall(ARGV[at + 1] == "delayed" and delayed or plainly, KEYS, ARGV, batch, at)
  if fine and done then
    at = at + WORDS * done
  elseif batch.begun then
    -- It failed while it was writing: what it has not answered for is in doubt.
    trouble = batch.textOf(done)
    local refusal = batch.refusesWrites(trouble)
    if refusal then
      return {err = refusal}
    end
    batch.open = false
    at = at + WORDS * batch.begun
    while #batch.codes < (at - FIRST) / WORDS do
      batch.codes[#batch.codes + 1] = trouble
      batch.refused = true
    end
  else
    special = special or specially(KEYS, ARGV, batch)
    if at <= LAST then
      local refusal = special.settle(at)
      if refusal then
        return {err = refusal}
      end
      at = at + WORDS
    else
      local filled, failure = pcall(special.fill)
      if not filled then
        trouble = batch.textOf(failure)
      end
      batch.open = false
    end
  end
end

if trouble ~= "" and #batch.codes == 0 and #batch.jobs == 0 then
  return {err = batch.refusesWrites(trouble) or trouble}
end
return {batch.refused and batch.codes or 0, batch.jobs, batch.limited, batch.nextAt, trouble}

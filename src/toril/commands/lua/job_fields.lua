--[[
  Reads fields of one job, of bounded size. Changes nothing.

  job          the job's hash
  longest      the length of a value that is read; of a longer one the length is returned
  max_bytes    the size of all values
  each: field  a field of the hash
  Reply        values of the fields: text, the length of one that is too long, or nil
]]
--@keys job
--@args longest max_bytes
--@each field
--@own job_row job_row
local names = {}
for at = FIRST_ITEM, #ARGV do
  names[#names + 1] = ARGV[at]
end
local values = job_row(KEYS, ARGV, job, names, tonumber(longest), tonumber(max_bytes))
return values

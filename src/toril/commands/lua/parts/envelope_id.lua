-- The id of a job, without decoding its payload when the id comes first, as in the canonical form; nil when it has none.
local envelope = ...
local id = string.match(envelope, '^%s*{%s*"job_id"%s*:%s*"([^"\\]+)"')
if id then
  return id
end
local ok, fields = pcall(cjson.decode, envelope)
if ok and type(fields) == "table" and type(fields.job_id) == "string" then
  return fields.job_id
end
return nil

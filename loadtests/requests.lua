-- What wrk sends: POST with a body and, as its arguments say, a key that no other request has ("first", with a seed that no other
-- run has), one of a fixed set in turn ("replay", with the size of the set) or none ("none").
--   wrk ... -s requests.lua URL -- MODE SEED SIZE PATH FILE_WITH_THE_BODY [FILE_FOR_STATUSES]
-- With a file for them, each status that is an error is written there, one a line: wrk is slower then.
-- Says at the end what became of it, as one line of JSON (times in microseconds).
local threads = 0

function setup(thread)
  threads = threads + 1
  thread:set("number", threads)
end

function init(arguments)
  local mode, seed, size = arguments[1], arguments[2], tonumber(arguments[3])
  local file = assert(io.open(arguments[5], "rb"))
  local path, body = arguments[4], file:read("*a")
  file:close()
  local head = "POST " .. path .. " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: " .. #body
    .. "\r\nAuthorization: Bearer sk_live_0123456789"
  local keyed, rest = head .. "\r\nIdempotency-Key: ", "\r\n\r\n" .. body
  local count = 0
  if arguments[6] then
    local statuses = assert(io.open(arguments[6], "a"))
    statuses:setvbuf("line")
    response = function(status)
      if status > 399 then statuses:write(status, "\n") end
    end
  end
  if mode == "none" then
    local whole = head .. rest
    request = function() return whole end
  elseif mode == "first" then
    local begin = keyed .. seed .. "-" .. number .. "-"
    request = function()
      count = count + 1
      return begin .. count .. rest
    end
  else
    local all = {}
    for each = 1, size do
      all[each] = keyed .. seed .. "-" .. each .. rest
    end
    request = function()
      count = count % size + 1
      return all[count]
    end
  end
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '{"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"max_us":%d,"status_errors":%d,"socket_errors":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), latency.max, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout))
end

-- What wrk sends: POST with 200 bytes of JSON and, as its arguments say, a key that no other request has ("first", with a seed
-- that no other run has), one of a fixed set in turn ("replay", with the size of the set) or none ("none").
--   wrk ... -s requests.lua URL -- first SEED | replay SEED SIZE | none
-- Says at the end what became of it, as one line of JSON (times in microseconds).
local BODY = '{"amount":1999,"currency":"EUR","customer":"cus_0123456789","order":"4711","items":[{"sku":"A-1","count":2},'
  .. '{"sku":"B-22","count":1}],"note":"two hundred bytes of a request, as commands are: no more."}'
local HEAD = "POST /payments HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: " .. #BODY
  .. "\r\n"
local END = "\r\n\r\n" .. BODY
local KEY = HEAD .. "Authorization: Bearer sk_live_0123456789\r\nIdempotency-Key: "

local threads = 0

function setup(thread)
  threads = threads + 1
  thread:set("number", threads)
end

function init(arguments)
  local mode, seed, size = arguments[1], arguments[2], tonumber(arguments[3] or "0")
  local count = 0
  if mode == "none" then
    local whole = HEAD .. "Authorization: Bearer sk_live_0123456789" .. END
    request = function() return whole end
  elseif mode == "first" then
    local begin = KEY .. seed .. "-" .. number .. "-"
    request = function()
      count = count + 1
      return begin .. count .. END
    end
  else
    local all = {}
    for each = 1, size do
      all[each] = KEY .. seed .. "-" .. each .. END
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

-- Idempotency keys in nginx, on Redis: the job of oncegate's hot path, as the thing to measure oncegate against.
--
-- The same as oncegate: the key's grammar and limits, records scoped by Authorization, a fingerprint of method, path, query
-- and body, one EVALSHA to claim (owner token, lease) and one to complete before the last byte leaves, with oncegate's own
-- Lua scripts in Redis; the kept response with its headers, 409, 422, 400, 503, the attempt's number for the upstream.
-- Left out: renewal of leases (proxy_read_timeout is below the lease), Prefer: wait, duplicates as errors, routes, metrics,
-- problem details beyond the code, repetition of a completion that fails, unknown outcomes told apart (any 502 is one).
--
-- How it is made fast: everything that is the same in every call is packed once; one send and one receive per command, on a
-- pooled connection that a first request keeps over its attempt; digests by OpenSSL; no table per request but nginx's own.
local ffi = require "ffi"

local capture, print, exit, header_of = ngx.location.capture, ngx.print, ngx.exit, ngx.header
local tcp, sha1, find, sub, byte, char = ngx.socket.tcp, ngx.sha1_bin, string.find, string.sub, string.byte, string.char
local get_headers, read_body, get_body = ngx.req.get_headers, ngx.req.read_body, ngx.req.get_body_data
local match, var, floor, tonumber, type, pairs = ngx.re.match, ngx.var, math.floor, tonumber, type, pairs
local re_find, method_of = ngx.re.find, ngx.req.get_method

ffi.cdef [[ int RAND_bytes(unsigned char *buffer, int size); ]]

local OMITTED = { -- hop by hop (RFC 9110 7.6.1), and what belongs to one response alone
  connection = true, ["keep-alive"] = true, ["proxy-connection"] = true, te = true, trailer = true,
  ["transfer-encoding"] = true, upgrade = true, date = true, ["set-cookie"] = true, ["content-length"] = true,
  Connection = true, Date = true, ["Content-Length"] = true, -- the usual spelling, found without lower()
}
local RELEASED = { [401] = true, [403] = true, [408] = true, [425] = true, [429] = true }
local METHODS = { POST = ngx.HTTP_POST, PATCH = ngx.HTTP_PATCH }
local FIRST = "\0\0\0\1"
local BARE_KEY = [[^[!#-+\--\[\]-~]{1,255}$]]
local QUOTED_KEY = [[^"((?:[ !#-\[\]-~]|\\["\\])*)"(?:[ ]*;.*)?$]]

local POOL_BYTES = 16 * 256
local random = ffi.new("unsigned char[?]", POOL_BYTES)
local random_left = 0

local function new_token()
  if random_left == 0 then
    if ffi.C.RAND_bytes(random, POOL_BYTES) ~= 1 then
      error("no random bytes")
    end
    random_left = POOL_BYTES
  end
  random_left = random_left - 16
  return ffi.string(random + random_left, 16)
end

local function big_endian(number)
  return char(floor(number / 16777216) % 256, floor(number / 65536) % 256, floor(number / 256) % 256, number % 256)
end

local function answer(status, code, detail)
  ngx.status = status
  header_of["Content-Type"] = "application/problem+json"
  local body = '{"code":"' .. code .. '","status":' .. status .. ',"detail":"' .. detail .. '"}'
  header_of["Content-Length"] = #body
  print(body)
  return exit(ngx.HTTP_OK)
end

-- The key that a field value names, or nil (draft-ietf-httpapi-idempotency-key-header-07 section 2.1, or a bare token).
local function parse_key(value)
  if type(value) == "table" then
    return nil
  end
  if re_find(value, BARE_KEY, "jo") then
    return value
  end
  local quoted = match(value, QUOTED_KEY, "jo")
  local key = quoted and quoted[1]:gsub("\\(.)", "%1")
  return key and #key >= 1 and #key <= 255 and key or nil
end

local function split(value) -- the lines of a repeated field
  local lines = {}
  for line in value:gmatch("[^\1]+") do
    lines[#lines + 1] = line
  end
  return lines
end

local M = {}

function M.new(options)
  local host, port = options.redis_host, options.redis_port
  local lease_ms, retention_ms = options.lease * 1000, options.unknown_ttl * 1000
  local ttls = { S = options.ttl * 1000, F = options.error_ttl * 1000, U = options.unknown_ttl * 1000 }

  -- A script's sources, and the packed beginning of its call.
  local function script(name, arguments)
    local file = assert(io.open(options.scripts .. "/" .. name .. ".lua", "rb"))
    local source = file:read("*a")
    file:close()
    local digest = sha1(source):gsub(".", function(octet) return ("%02x"):format(byte(octet)) end)
    local key = "\r\n$1\r\n1\r\n$" .. (#options.namespace + 21) .. "\r\n" .. options.namespace .. ":"
    return {
      load = "*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n$" .. #source .. "\r\n" .. source .. "\r\n",
      head = "*" .. (arguments + 4) .. "\r\n$7\r\nEVALSHA\r\n$40\r\n" .. digest .. key,
    }
  end
  local claim, complete, release = script("claim", 3), script("complete", 2), script("release", 1)
  local claim_head, complete_head, release_head = claim.head, complete.head, release.head

  local to_live = tostring(lease_ms + retention_ms)
  local claim_fixed = "\r\n$55\r\n\1I" -- token and fingerprint follow
  local claim_tail = big_endian(1) .. "\0\0\0\0" .. big_endian(retention_ms) .. "A" .. ("\0"):rep(8)
    .. "\r\n$" .. #to_live .. "\r\n" .. to_live .. "\r\n$1\r\nF\r\n"
  local expiry = {}
  for state, ttl in pairs(ttls) do
    expiry[state] = "\r\n$" .. #tostring(ttl) .. "\r\n" .. ttl .. "\r\n"
  end

  -- Send one packed command and return its reply, as bytes; nil when Redis did not answer.
  local function call(redis, command)
    if not redis:send(command) then
      return nil
    end
    local reply = redis:receiveany(8192)
    while reply do
      local kind = byte(reply)
      if kind ~= 42 then -- a line: ":1", "-NOSCRIPT ..."
        if byte(reply, -1) == 10 then
          return reply
        end
      else -- "*3", ":0" or ":1", "$length", the record, ":pttl"
        local last = find(reply, "\r\n", 10, true)
        if last then
          local start = last + 2
          local after = start + tonumber(sub(reply, 10, last - 1)) + 2
          if #reply > after + 1 and byte(reply, -1) == 10 then
            return reply, start, after
          end
        end
      end
      local more = redis:receiveany(65536)
      reply = more and reply .. more
    end
    return nil
  end

  local function evaluate(redis, command)
    local reply, start, after = call(redis, command)
    if reply and byte(reply) == 45 and sub(reply, 1, 9) == "-NOSCRIPT" then
      if call(redis, claim.load) and call(redis, complete.load) and call(redis, release.load) then
        return call(redis, command)
      end
    end
    return reply, start, after
  end

  -- Redis holds: the fixed part, 4 bytes of length, "status\0name\0value\0...", the body; \1 between the lines of a field.
  local function replay(record, ttl)
    local b1, b2 = byte(record, 41, 42) -- nginx takes no head of more than 64 KiB
    local at = 43 + b1 * 256 + b2
    ngx.status = tonumber(sub(record, 43, 45))
    local from = 47
    while from < at do
      local middle = find(record, "\0", from, true)
      local last = find(record, "\0", middle + 1, true)
      local value = sub(record, middle + 1, last - 1)
      header_of[sub(record, from, middle - 1)] = find(value, "\1", 1, true) and split(value) or value
      from = last + 1
    end
    header_of["Content-Length"] = #record - at + 1
    header_of["Idempotent-Replayed"] = "true"
    header_of["Cache-Status"] = "nginx; hit; ttl=" .. ttl
    return print(sub(record, at))
  end

  local function judge(redis, record, fingerprint, pttl)
    redis:setkeepalive()
    local state = sub(record, 2, 2)
    if sub(record, 19, 34) ~= fingerprint then
      return answer(422, "key-reused", "This key was used for another request.")
    end
    if state == "I" then
      local lapsed = tonumber(pttl) <= retention_ms
      header_of["Retry-After"] = not lapsed and 1 or nil
      return answer(409, lapsed and "outcome-unknown" or "in-flight", "The first request with this key has no result yet.")
    end
    if state == "S" then
      return replay(record, floor(tonumber(pttl) / 1000))
    end
    return answer(409, "outcome-unknown", "An earlier request may or may not have been executed.")
  end

  local function run(redis, method, name, token, fingerprint, attempt)
    local response = capture(attempt == 1 and "/.upstream?attempt=1" or "/.upstream?attempt=" .. attempt, method)
    local status, body, headers = response.status, response.body, response.header
    local state = "S"
    if response.truncated or status == 502 or status == 504 then
      state = "U"
    elseif status >= 400 then
      state = "F"
    end
    ngx.status = status
    local kept = status .. "\0"
    for field, value in pairs(headers) do
      if not OMITTED[field] and not OMITTED[field:lower()] then
        if type(value) == "string" then
          kept = kept .. field .. "\0" .. value .. "\0"
        else
          kept = kept .. field .. "\0" .. table.concat(value, "\1") .. "\0"
        end
      end
      header_of[field] = value
    end
    local command
    local released = RELEASED[status]
    if released then
      command = release_head .. name .. "\r\n$16\r\n" .. token .. "\r\n"
    else
      command = complete_head .. name .. "\r\n$" .. (42 + #kept + #body) .. "\r\n\1" .. state .. token .. fingerprint
        .. (attempt == 1 and FIRST or big_endian(attempt)) .. big_endian(#kept) .. kept .. body .. expiry[state]
    end
    if evaluate(redis, command) then
      redis:setkeepalive()
    end
    header_of["Content-Length"] = #body
    header_of["Cache-Status"] = (released or state == "U") and "nginx; fwd=miss" or "nginx; fwd=miss; stored"
    return print(body)
  end

  local options_of = {}
  for name, number in pairs(METHODS) do
    options_of[name] = { method = number, always_forward_body = true }
  end

  return function()
    local headers = get_headers(0)
    local key_line = headers["idempotency-key"]
    local key = parse_key(key_line)
    if not key then
      return answer(400, "key-invalid", "Send one key of 1 to 255 characters.")
    end
    local caller = headers["authorization"] or ""
    if type(caller) == "table" then
      caller = table.concat(caller, "\0")
    end
    local name = sha1(#key .. ":" .. key .. caller)
    local method, target = method_of(), var.request_uri
    read_body()
    local body = get_body() or ""
    local fingerprint = sub(sha1(method .. #target .. ":" .. target .. body), 1, 16)
    local token = new_token()

    local redis = tcp()
    if not redis:connect(host, port) then
      return answer(503, "cache-unavailable", "The record cache can't be reached.")
    end
    local reply, start, after = evaluate(redis, claim_head .. name .. claim_fixed .. token .. fingerprint .. claim_tail)
    if not reply or byte(reply) == 45 then
      return answer(503, "cache-unavailable", "The record cache can't be reached.")
    end
    header_of["Idempotency-Key"] = key_line
    if byte(reply) == 58 then
      return run(redis, options_of[method], name, token, fingerprint, 1)
    end
    local record = sub(reply, start, after - 3)
    if byte(reply, 6) == 49 then
      local b1, b2, b3, b4 = byte(record, 35, 38)
      return run(redis, options_of[method], name, token, fingerprint, ((b1 * 256 + b2) * 256 + b3) * 256 + b4)
    end
    return judge(redis, record, fingerprint, sub(reply, after + 1, -3))
  end
end

return M

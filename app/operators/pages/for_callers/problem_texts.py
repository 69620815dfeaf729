"""The texts of docs/problems.md about each problem. Written by scripts/docs: change them there."""

TEXTS = r"""
## key-missing

**What happened.** The route has `on_missing_key = "reject"`, and the request carries neither the key's header nor
one of its aliases. **What was executed.** Nothing. **Send it again?** No, not as it is. **What to do.** Make a key
once per command (a random UUID will do), keep it with the command, and send it with every try.

## key-invalid

**What happened.** The header is not one key: it is empty, longer than 255 characters, holds a character that is not
allowed or a quote that is not closed, came twice, disagrees with an alias, or hasn't the form that this route wants
(`key_pattern`: a UUID of version 7, say). `detail` says which. The key is not echoed. **What was executed.**
Nothing. **Send it again?** No, not as it is. **What to do.** Send one key of 1 to 255 characters: bare (`abc-1`:
visible ASCII without `"`, `\` and `,`), or in double quotes (`"abc 1"`); in the form that `detail` names, if it
names one.

## aggregate-invalid

**What happened.** The route numbers its commands by aggregate, and the request doesn't say which one it is about:
the header that the route names is missing, empty or there twice, the path has nothing in the id's place or can be
read in several ways, or the id holds a control character or is no UTF-8. **What was executed.** Nothing. **Send it
again?** No, not as it is. **What to do.** Send the id, percent-encoded in the path, where the operation wants it.

## version-invalid

**What happened.** The route numbers its commands, and what says the expected version can't be understood:
`Expected-Version` is a whole number without signs or leading zeros, `If-Match` one strong tag with such a number
(`"4"`) or `*`, `If-None-Match` is `*`; or there is more than one of these. **What was executed.** Nothing, and
nothing was claimed. **Send it again?** No, not as it is. **What to do.** Send one of the three, well-formed.

## caller-missing

**What happened.** None of the headers that tell callers apart came with the request, and the route has
`require_scope = true`; or the request has a `Cookie`, and no `scope` is set: two sessions with one key would get
each other's responses. **What was executed.** Nothing. **Send it again?** No, not as it is. **What to do.** Send
one of the headers that `WWW-Authenticate` and `detail` name, usually `Authorization`. The challenge is `Header
name="authorization"`, whatever the scheme: oncegate needs the header to tell callers apart, and checking it is the
upstream's business. Where callers are known by cookies, the operator sets [`scope`](security.md#who-is-the-caller).
From an app that names its callers itself it means that nobody is logged in; the challenge is `Login`. Where a token
names the caller, it is `Bearer`.

## caller-invalid

**What happened.** Callers are known here by [what their token claims](security.md#callers-with-tokens), and this
token does not hold: it has expired, is not signed by its issuer, is for somebody else, lacks a claim, or is no JWT
at all. `detail` says which, and the challenge is `Bearer error="invalid_token"`. **What was executed.** Nothing.
The key was not claimed. **Send it again?** No, not with this token. **What to do.** Fetch a new token, and send the
same request with the same key: the caller is the same.

## request-timeout

**What happened.** The request's body did not arrive whole within `body_timeout` (30 s). The connection is closed.
**What was executed.** Nothing. The key was not claimed. **Send it again?** Yes, with the same key. **What to do.**
Send it again. If that happens often, look at the client's upload, or raise `body_timeout`.

## key-reused

**What happened.** The same caller used this key before, for another method, path, query or body. It doesn't matter
what became of that request. **What was executed.** Nothing of this request. **Send it again?** No: it would be
refused again as long as the earlier request's record is kept. **What to do.** For a new command, make a new key. If
it was meant as a retry, send the very bytes of the first request: a client that writes its JSON anew may order it
differently (`fingerprint = "json"` forgives that), and a time stamp or a nonce in the body always differs.

## in-flight

**What happened.** The first request with this key, or its latest attempt, is still being executed, maybe by another
gateway. Where the route lets duplicates `wait`, it was so all that time. **What was executed.** Nothing of this
request. The other one goes on, even if its client has left. **Send it again?** Yes, after `Retry-After`. **What to
do.** Send it again with the same key, or with `Prefer: wait=10`, to get the outcome as soon as it is there.

## duplicate

**What happened.** The command was executed before, under this key. Either the request or the route asked for an
error in place of the replay, or the result's body was not kept (larger than `max_result`, or left out by `keep_body
= false` or by an app's own `redact`): then `original_result` has `"body_omitted": true`. **What was executed.**
Nothing now. The first execution was a success, or an error that is replayed; see `original_result.status`. **Send
it again?** No: the answer would be the same. **What to do.** Go on with `original_result`: `status`, `headers`,
`completed_at`, and `body` (a JSON value, else text, else base64 with `"body_encoding": "base64"`; JSON of more than
some 10,000 values comes as text, and text that consists of quotes, backslashes or line breaks for the most part as
base64). Where the body was omitted, ask the service for what was made.

## outcome-unknown

**What happened.** An earlier attempt was sent to the service, and nobody knows what came of it: the connection
broke, a gateway died, the service answered 502 or 504, or `attempt_timeout` ran out. The route has `on_unknown =
"refuse"`. **What was executed.** Nothing of this request. The earlier one was executed wholly, in part, or not at
all. **Send it again?** No: it is refused for as long as the record is kept (`ttl`, a day). **What to do.** Find out
from the service whether the command was executed. If it was, go on. If it was not, send it with a new key. Or give
`record` to whoever runs the gateway, who can say what happened
([operations](operations.md#a-request-whose-outcome-nobody-knows)); then this key works again. It does so by itself,
too, where the attempt's gateway still lives and reports the outcome late.

## version-conflict

**What happened.** The aggregate isn't at the version that `Expected-Version` says: `expected` is that one,
`current` the one that there is. Somebody else's command came first. Never this caller's own: a command that was
accepted gets its first answer on its retry, although it has moved the version on itself. **What was executed.**
Nothing, and the key is free. **Send it again?** No, not as it is. **What to do.** Look at what has changed. Where
the command still makes sense, send it with the new version; the same key will do, for the version is no part of the
payload.

## precondition-failed

**What happened.** The same as [`version-conflict`](#version-conflict), of a version that came in `If-Match` or
`If-None-Match` (RFC 9110 section 13.1). **What was executed.** Nothing, and the key is free. **Send it again?** No,
not as it is. **What to do.** As there.

## too-many-keys

**What happened.** This caller has `max_in_flight_per_caller` attempts running in this gateway process, those
included whose clients have left, or has sent more new keys than `new_keys_per_caller` lets through. Other callers
are not concerned. **What was executed.** Nothing, and the key is free. Replays are still given, and never count.
**Send it again?** Yes, after `Retry-After`, with the same key. **What to do.** Send less at once, and retries with
the key of the first request: a new key for each try is counted as new, and executes twice.

## payload-too-large

**What happened.** The request is enforced (it carries a key, or is given one), and its body is over
`max_request_body` (1 MiB). The connection is closed. The same upload without a key passes, whatever its size: to be
compared with its retries, an enforced request's body is held whole. **What was executed.** Nothing. The key was not
claimed. **Send it again?** No, not as it is. **What to do.** Send less, or have the [limit
raised](faq.md#why-is-my-upload-refused-only-with-a-key) for this route.

## precondition-required

**What happened.** The route has `require_version = true`, and the request doesn't say which version of the
aggregate it expects (RFC 6585 section 3). **What was executed.** Nothing, and nothing was claimed. **Send it
again?** No, not as it is. **What to do.** Send `Expected-Version` with the last `sequence` that you know of this
aggregate, 0 for none; or `If-Match`, or `If-None-Match: *`.

## record-unreadable

**What happened.** The record of this key is damaged, was written by a newer version of oncegate, or is encrypted by
a key that this gateway hasn't got. It is not taken for a missing one, because the command might run twice. **What
was executed.** Nothing of this request. What became of the first one can't be read. **Send it again?** No, not
before somebody has looked at the record. **What to do.** Give `record` to whoever runs the gateway. During an
upgrade: finish it, so that all gateways are of the newer version. The log says it where an [encryption
key](operations.md#changing-an-encryption-key) is missing: put it back.

## caller-failed

**What happened.** An app names its callers itself (`IdempotencyMiddleware(caller=...)`), and the function that does
so raised, or gave what is no name. The app's log says what and where, never with which words. As a rule what
authenticates stands [within](faq.md#which-other-middlewares-go-around-it-and-which-within) oncegate's middleware,
where it should go around it. **What was executed.** Nothing. The key was not claimed. **Send it again?** No: it is
the app that has to be mended. Afterwards, yes, with the same key. **What to do.** Tell whoever runs the app.

## gateway-failed

**What happened.** The gateway met a fault of its own: not the service's, and not the caller's. Its log says which
one, with the record's id. **What was executed.** Nobody knows: all of it, a part, or nothing. **Send it again?**
No, under `on_unknown = "refuse"`: it would get `outcome-unknown`. Under `on_unknown = "retry"` `retryable` is true,
and it is executed again. Without a key: only if the method is idempotent (GET, HEAD, OPTIONS, TRACE, PUT, DELETE).
**What to do.** Tell whoever runs the gateway, who finds `a request failed` in its log and reports it. Then see
[`outcome-unknown`](#outcome-unknown).

## upgrade-unsupported

**What happened.** The request asks for a WebSocket (`Upgrade: websocket`) where that can't be had: a route's rules
hold for it (its `methods` name `GET`), or it is no handshake as RFC 6455 has it: another method, a body, another
protocol beside it, no `Connection: Upgrade`. Any other WebSocket passes; any other `Upgrade` is ignored. **What was
executed.** Nothing. **Send it again?** No. **What to do.** Take `GET` out of the route's `methods`, or give the
WebSocket a path that no route with it matches.

## upstream-unreachable

**What happened.** The gateway got no connection to the service: refused, no address, no TLS, or no answer to a
connect. **What was executed.** Nothing was sent. The key is as free as it was before. **Send it again?** Yes, with
the same key. **What to do.** Send it again after a pause that grows.

## upstream-failed

**What happened.** The request was sent, and then the connection broke, the answer was malformed, or the attempt ran
into `attempt_timeout`. Where an upstream closed an idle connection just as a request went out on it, the gateway
itself sends the request once more, if its method is idempotent and it is not under enforcement; that is not this
problem. **What was executed.** Nobody knows: all of it, a part, or nothing. **Send it again?** No, under
`on_unknown = "refuse"`: it would get `outcome-unknown`. Under `on_unknown = "retry"` `retryable` is true, and it is
executed again. Without a key: only if the method is idempotent (GET, HEAD, OPTIONS, TRACE, PUT, DELETE). **What to
do.** See [`outcome-unknown`](#outcome-unknown), or send it again where `retryable` says so.

## cache-unavailable

**What happened.** The gateway can't reach its records, or has no room for another one, and so can't tell a first
request from a retry. **What was executed.** Nothing was forwarded. A command for an [asynchronous](async.md) route
was not accepted, but a copy of it may be in its stream; with the next one it counts as one command. **Send it
again?** Yes, after `Retry-After`, with the same key. **What to do.** Send it again after a pause that grows. Where
an outage of the cache may cost the guarantee instead of the service, the operator sets `on_cache_down =
"fail_open"`. Memory that is full (`memory_limit`, Redis's `maxmemory`) refuses in either case.

## caller-unverifiable

**What happened.** The keys by which the caller's token is verified can't be had: their issuer is away, and there
were none before, or this token's is a new one. **What was executed.** Nothing. The key was not claimed. **Send it
again?** Yes, with the same key. **What to do.** Send it again, after `Retry-After` at the earliest. If it goes on,
tell whoever runs the gateway: `jwks` doesn't answer.

## overloaded

**What happened.** This gateway process has `max_in_flight` attempts running, or holds `max_buffered` bytes of
bodies that wait to be admitted; or, rarely, the request was overtaken by others three times before it could begin;
or a command found its stream full, as its consumers are behind (`stream_limit`). **What was executed.** Nothing.
Replays are still given. **Send it again?** Yes, after `Retry-After`, with the same key. **What to do.** Send it
again after a pause that grows. If that happens often, add gateways, or find out why the service is slow; for a full
stream, add workers.

## upstream-timeout

**What happened.** The service did not begin to answer within `response_timeout` (30 s). **What was executed.** The
request was sent. The attempt goes on without its client, and its outcome will be recorded. **Send it again?** Yes,
with the same key: it meets the attempt in flight, or gets its result. Without a key `retryable` is true for
idempotent methods only, because nobody keeps the result. **What to do.** Send it again, best with `Prefer:
wait=10`.
"""

"""What differs between requests, and between an upstream's answers: one request of each kind, and more of some."""

from typing import Any

from tests.app.fast_path import keyed, request

ANSWERS = {
    f"/{status}": b"HTTP/1.1 %d As told\r\ncontent-length: 3\r\ncontent-type: a/b\r\n\r\n%d" % (status, status)
    for status in (200, 202, 301, 307, 400, 401, 402, 403, 404, 408, 409, 422, 425, 429, 500, 501, 502, 503, 504, 599)
}
ANSWERS |= {
    "/204": b"HTTP/1.1 204 No Content\r\netag: a\r\n\r\n",
    "/304": b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\netag: a\r\n\r\n",
    "/none": b"",
    "/empty": b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    "/garbage": b"SMTP 220 ready\r\n\r\n",
    "/early": b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "/101": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "/more": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nmore",
    "/until-close": b"HTTP/1.1 200 OK\r\nx: a\r\n\r\nuntil the end",
    "/version-1.0": b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "/version-2": b"HTTP/2.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "/chunked": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\nx-trailer: a\r\n\r\n",
    "/gzip": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nabc",
    "/large": b"HTTP/1.1 200 OK\r\ncontent-length: 5001\r\n\r\n" + b"x" * 5001,
    "/as-large-as-is-kept": b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n" + b"x" * 5000,
    "/over-one-write": b"HTTP/1.1 200 OK\r\ncontent-length: 66000\r\n\r\n" + b"x" * 66000,
    "/cookies": b"HTTP/1.1 200 OK\r\nset-cookie: a=1\r\nset-cookie: b=2\r\nx: 1\r\nx: 2\r\ncontent-length: 2\r\n\r\nok",
    "/named": b"HTTP/1.1 200 OK\r\nconnection: x-hop, close\r\nx-hop: a\r\nx: b\r\nkeep-alive: timeout=5\r\n"
    b"content-length: 2\r\n\r\nok",
    "/ours": b"HTTP/1.1 200 OK\r\nidempotent-replayed: true\r\nidempotency-key: x\r\ncache-status: upstream; hit\r\n"
    b"content-length: 2\r\n\r\nok",
    "/dropped": b"HTTP/1.1 200 OK\r\nx-dropped: a\r\nvia: 1.1 other\r\ncontent-length: 2\r\n\r\nok",
}
RULES: dict[str, Any] = {"max_request_body": 3000, "max_result": 5000, "drop_headers": ["X-Dropped"]}
ROUTES: list[dict[str, Any]] = [
    {"path": "/402", "status": {"402": "success"}},
    {"path": "/warn/*", "on_mismatch": "warn"},
    {"path": "/required/*", "on_missing_key": "reject", "require_scope": True},
    {"path": "/generated/*", "on_missing_key": "generate"},
    {"path": "/raise/*", "raise_on_duplicate": True},
    {"path": "/json/*", "fingerprint": "json"},
    {"path": "/replayed-errors/*", "on_error": "replay"},
    {"path": "/retried/*", "on_unknown": "retry"},
    {"path": "/put/*", "methods": ["PUT", "POST", "HEAD"], "on_missing_key": "reject"},
    {"path": "/waits/*", "wait": 20},
    {"path": "/uuid7/*", "key_pattern": "uuid7"},
    {"path": "/other/*", "header": "X-Key", "aliases": ["X-Old-Key"], "scope": ["header:X-A", "header:X-B"]},
]


def plain() -> list[bytes]:
    """One request after the other, each on the connection of the one before while that lasts."""
    requests = [data for path in ANSWERS for data in each_way(path)]
    requests += [
        keyed(f"2{path}", path=path) for path in ANSWERS for _ in range(2)
    ]  # over the connections that are left
    for path in ("/warn/a", "/json/a", "/raise/a", "/replayed-errors/a", "/retried/a"):
        requests += [keyed("k", b'{"a":1}', path), keyed("k", b'{ "a": 1 }', path), keyed("k", b'{"a":2}', path)]
    requests += [keyed("k", path="/a", idempotency_raise_on_duplicate=value) for value in ("0", "1", "true", "?1")]
    requests += [keyed(key, path="/uuid7/a") for key in ("order-1", "01890a5d-ac96-774b-bcce-b302099a8057")]
    requests += [
        keyed(key, path="/keys") for key in ("a b", '"a b"', '"a', "a,b", '""', "x" * 255, "x" * 256, "\x80", "a;p=1")
    ]
    requests += [keyed("c", path="/a", cookie="a=b"), keyed("c", path="/a", cookie="a=b", authorization="x")]
    requests += [keyed("k") + b"", request(idempotency_key="a", Idempotency_Key="b"), request(idempotency_key='"k"')]
    requests += [
        request(path="/required/a"),
        keyed("r", path="/required/a"),
        keyed("r", path="/required/a", authorization="a"),
    ]
    requests += [keyed("callers", authorization=caller) for caller in ("a", "b", "a")]
    requests += [request(path="/generated/a"), keyed("g", path="/generated/a")]
    requests += [request(path="/other/a", x_key="a", x_a="1"), request(path="/other/a", x_old_key="a", x_a="1")]
    requests += [request(path="/other/a", x_old_key="b", x_key="a"), request(path="/other/a", idempotency_key="a")]
    requests += [request(method, "/put/a", idempotency_key="p") for method in ("PUT", "PUT", "HEAD", "HEAD", "PATCH")]
    requests += [
        request(method, "/any", idempotency_key="m") for method in ("PUT", "DELETE", "OPTIONS", "PATCH", "PATCH")
    ]
    requests += [keyed("big", b"x" * 3000), keyed("big", b"x" * 3000), keyed("bigger", b"x" * 3001)]
    requests += [
        request(idempotency_attempt="7"),
        keyed("t", idempotency_attempt="7"),
        request("GET", idempotency_attempt="7"),
    ]
    requests += [keyed("w", prefer="wait=3"), keyed("w", prefer="wait=3"), keyed("w", prefer="respond-async")]
    requests += [keyed("hop", connection="x-hop, idempotency-key", x_hop="a", te="trailers", x="\xe9")]
    requests += [keyed("f", x_forwarded_for="1.2.3.4", forwarded="for=x", via="1.0 a", x_real_ip="1.2.3.4")]
    requests += [
        keyed("q", path=path) for path in ("/a?b=c", "/a?b=d", "//a", "/%61", "/a/../a", "/a;x", "/a?", "/_oncegatex")
    ]
    requests += [request("GET", path) for path in ("/a?b#c", "/%zz", "/_oncegate/nothing", "*")]
    requests += [b"OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n"]
    requests += [
        b"%b http://b/x?y HTTP/1.1\r\nhost: a\r\nidempotency-key: abs\r\n\r\n" % method
        for method in (b"GET", b"POST", b"POST")
    ]
    requests += [b"POST /x HTTP/1.1\r\nhost: a\r\nidempotency-key: bare\r\n\r\n"] * 2
    requests += [
        b"POST /x HTTP/1.1\r\nhost: a\r\nidempotency-key: chunks\r\ntransfer-encoding: chunked\r\n\r\n"
        b"2\r\nab\r\n1\r\nc\r\n0\r\nx: y\r\n\r\n"
    ] * 2
    requests += [
        keyed("close", connection="close"),
        request("GET", connection="close"),
        request("GET", connection="Keep-Alive"),
    ]
    requests += [b"%b /x HTTP/1.0\r\nidempotency-key: old\r\n\r\n" % method for method in (b"GET", b"POST", b"POST")]
    requests += [b"GET /x HTTP/1.0\r\nconnection: keep-alive\r\n\r\n", b"GET /chunked HTTP/1.0\r\n\r\n"]
    requests += [keyed("go", expect="100-continue"), keyed("go", expect="100-continue"), request(expect="100-continue")]
    requests += [
        request("GET", connection="upgrade", upgrade="websocket"),
        keyed("u", connection="upgrade", upgrade="websocket"),
    ]
    requests += [keyed("h2", connection="upgrade, http2-settings", upgrade="h2c", http2_settings="a"), keyed("h2")]
    requests += [b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", b"NONSENSE\r\n\r\n"]
    requests += [b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"]
    return requests


def each_way(path: str) -> list[bytes]:
    """Passing through and enforced, first and again."""
    passing = [request("GET", path), request("HEAD", path), request("POST", path, idempotent_replayed="true")]
    return [*passing, keyed(path, path=path), keyed(path, path=path)]

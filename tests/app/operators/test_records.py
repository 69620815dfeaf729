"""``records/``: only for who shows the token, bounded, and never a way to another service's records; each answer as described.

Rules of docs/contract.md: R11.4, R11.6, R11.11, R11.12.
"""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from oncegate.app.operators.audit import Author
from oncegate.app.operators.pages.bearer import MOST_LINES
from oncegate.app.operators.pages.before_routes import MOST_BYTES
from oncegate.app.operators.records.records import Records
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import Claim, ClaimRequest, Record, State
from oncegate.cache.transitions import Resolution, ResolveRequest
from testing.served import served
from testing.servers import free_port
from testing.upstreams import OK, Upstream, answering, resetting_after
from tests.app.described import as_described

TOKEN = "the-operators-token"
RECORDS = "/_oncegate/records/"
CALLER = "Bearer alice"


@asynccontextmanager
async def guarded(upstream: str, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with served(upstream, admin_token=TOKEN, **settings) as (client, _):
        yield client


def operator(token: str = TOKEN, scheme: str = "Bearer") -> dict[str, str]:
    return {"authorization": f"{scheme} {token}"}


async def pay(client: httpx.AsyncClient, key: str, caller: str | None = CALLER, path: str = "/payments") -> Any:
    headers = {"idempotency-key": key} | ({"authorization": caller} if caller else {})
    return await client.post(path, content=b"{}", headers=headers)


async def get(client: httpx.AsyncClient, path: str = "", **query: Any) -> httpx.Response:
    return as_described(await client.get(RECORDS + path, params=query or None, headers=operator()))


async def post(client: httpx.AsyncClient, path: str, document: Any) -> httpx.Response:
    return as_described(await client.post(RECORDS + path, content=json.dumps(document), headers=operator()))


async def unknown(client: httpx.AsyncClient, key: str = "k-1") -> str:
    """A record of unknown outcome; its id. For an upstream that resets."""
    answer = await pay(client, key)
    assert answer.status_code == 502
    return str(answer.json()["record"])


async def test_without_a_token_records_do_not_exist() -> None:
    async with served(f"http://127.0.0.1:{free_port()}") as (client, _):
        for path in ("", "find", "x"):
            same = {"x-request-id": "the-same"}
            answer = await client.get(RECORDS + path, headers=operator("x") | same)
            assert answer.status_code == 404
            assert answer.content == (await client.get("/_oncegate/nothing", headers=same)).content


async def test_without_the_right_token_nothing_is_shown_or_done() -> None:
    wrong = ["Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN]
    right = f"Bearer {TOKEN}"
    others = [[], [("authorization", right), ("authorization", right)], [("x-authorization", right)]]
    async with Upstream(resetting_after()) as upstream, guarded(upstream.url) as client:
        record = await unknown(client)
        for headers in [*([("authorization", each)] for each in wrong), *others]:
            for method, path in [("GET", ""), ("GET", record), ("POST", "find"), ("POST", f"{record}/release")]:
                answer = await client.request(method, RECORDS + path, content=b"{}", headers=headers)
                assert answer.status_code == 401, headers
                assert answer.headers["www-authenticate"].startswith("Bearer")
                assert record not in answer.text
        assert (await get(client, record)).json()["state"] == "unknown"


async def test_a_list_is_by_state_and_goes_on_where_it_ended() -> None:
    async with Upstream(answering(OK)) as upstream, guarded(upstream.url) as client:
        ids = {(await pay(client, f"k-{number}")).headers["idempotency-key"] for number in range(12)}
        assert len(ids) == 12
        first = (await get(client, state="succeeded", limit=5)).json()
        assert len(first["records"]) == 5
        found, cursor = [each["id"] for each in first["records"]], first["cursor"]
        while cursor:
            page = (await get(client, limit=5, cursor=cursor)).json()
            found += [each["id"] for each in page["records"]]
            cursor = page["cursor"]
        assert len(set(found)) == len(found) == 12
        assert (await get(client, state="unknown")).json() == {"records": [], "cursor": ""}
        each = first["records"][0]
        assert (each["state"], each["attempt"], each["status"]) == ("succeeded", 1, 200)
        assert each["took"] >= 0
        assert 86_000 < each["expires_in"] <= 86_400
        assert "body" not in str(first)


async def test_what_is_wrong_is_refused_and_named() -> None:
    async with guarded(f"http://127.0.0.1:{free_port()}") as client:
        for query in ({"state": "absurd"}, {"state": "absent"}, {"limit": "many"}, {"limit": "-1"}):
            assert (await get(client, **query)).status_code == 400, query
        for path, body, detail in (
            ("?state=absurd", None, "state: Input should be 'in-flight', 'succeeded', 'failed' or 'unknown'"),
            ("find", b"{", "the body is no JSON"),
            ("find", b"{}", "give a key, or the header lines of a caller: who sends none is no caller in particular"),
            (f"{'a' * 20}:{'b' * 20}/resolve", b'{"as":"failed","headers":[["x"]]}', "headers.0.1: Field required"),
        ):
            method = "GET" if body is None else "POST"
            answer = await client.request(method, RECORDS + path, content=body, headers=operator())
            assert (answer.status_code, answer.json()["detail"]) == (400, detail)


async def test_a_record_shows_what_happened() -> None:
    async with Upstream(answering(OK)) as upstream, guarded(upstream.url) as client:
        await pay(client, "k-1")
        which = {"key": "k-1", "caller": [f"Authorization: {CALLER}"]}
        (identifier,) = (await post(client, "find", which)).json()["ids"]
        shown = (await get(client, identifier)).json()
        assert (shown["state"], shown["attempt"], shown["status"]) == ("succeeded", 1, 200)
        assert "response" not in shown
        response = (await get(client, identifier, response="true")).json()["response"]
        assert (response["status"], response["body"]) == (200, "ok")
        assert "/" in shown["gateway"]
        assert shown["began_at"] <= shown["ended_at"]


async def test_a_record_is_found_by_key_and_caller() -> None:
    routes = [{"path": "/by-key/*", "scope": ["header:X-Api-Key"]}]
    async with Upstream(answering(OK)) as upstream, guarded(upstream.url, routes=routes) as client:
        await pay(client, "k-1")
        await pay(client, "k-1", "Bearer bob")
        await pay(client, "k-1", None)
        await client.post("/by-key/a", headers={"idempotency-key": '"k-1"', "x-api-key": "secret"})

        async def found(*caller: str, key: str = "k-1") -> int:
            return len((await post(client, "find", {"key": key, "caller": caller})).json()["ids"])

        assert len((await post(client, "find", {"key": "k-1"})).json()["ids"]) == 4
        assert await found(f"Authorization: {CALLER}") == 1
        assert await found("authorization:Bearer bob", key='"k-1"') == 1
        assert await found("X-Api-Key: secret") == 1
        assert await found() == 1
        assert await found("Authorization: Bearer eve") == 0
        assert await found(key="k-2") == 0
        answer = await post(client, "find", {"key": "k-1", "caller": ["Bearer secret-without-a-name"]})
        assert answer.status_code == 400
        assert "secret" not in answer.text
        answer = await post(client, "find", {"key": "k-1", "caller": ["X-Who: alice"]})
        assert answer.json()["detail"] == "no header tells who the caller is: give x-api-key or authorization"


async def test_looking_for_a_key_ends_even_where_there_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncegate.app.operators.records.records.MOST_STEPS_FOR_A_KEY", 2)
    monkeypatch.setattr("oncegate.app.operators.records.records.MOST_LISTED", 1)
    async with Upstream(answering(OK)) as upstream, guarded(upstream.url) as client:
        for caller in ("Bearer a", "Bearer b", "Bearer c"):
            await pay(client, "k-1", caller)
        answer = await post(client, "find", {"key": "k-1"})
        assert (answer.status_code, "give the caller" in answer.json()["detail"]) == (400, True)


async def test_an_unknown_record_is_resolved_and_replayed() -> None:
    async with Upstream(resetting_after()) as upstream, guarded(upstream.url) as client:
        record = await unknown(client)
        body = b64encode(b"\x00\xff").decode()
        headers = [["Location", "/payments/1"], ["content-type", "image/x"]]
        outcome = {"as": "succeeded", "status": 201, "headers": headers, "body": body, "body_encoding": "base64"}
        done = await post(client, f"{record}/resolve", outcome | {"attempt": 1})
        assert done.json() == {"id": record, "resolution": "resolved", "state": "succeeded"}
        answer = await pay(client, "k-1")
        assert (answer.status_code, answer.content) == (201, b"\x00\xff")
        assert (answer.headers["location"], answer.headers["content-type"]) == ("/payments/1", "image/x")
        assert answer.headers["content-length"] == "2"
        assert answer.headers["idempotent-replayed"] == "true"
        assert upstream.arrivals == 1
        again = await post(client, f"{record}/resolve", {"as": "failed"})
        assert (again.status_code, again.json()["resolution"]) == (409, "settled")
        assert (await get(client, record)).json()["note"] == "resolved by an operator"


async def test_an_unknown_record_is_released_or_resolved_as_failed() -> None:
    async with Upstream(resetting_after()) as upstream, guarded(upstream.url) as client:
        record = await unknown(client)
        assert (await post(client, f"{record}/release", {})).json()["state"] == "absent"
        assert (await get(client, record)).status_code == 404
        assert await unknown(client) == record
        assert upstream.arrivals == 2
        assert (await post(client, f"{record}/resolve", {"as": "failed", "ttl": 1000})).status_code == 200
        shown = (await get(client, record, response="true")).json()
        assert (shown["state"], shown["response"]) == ("failed", None)
        assert 900 < shown["expires_in"] <= 1000
        assert await unknown(client) == record
        assert (await get(client, record)).json()["attempt"] == 2


@pytest.mark.parametrize(
    ("document", "seconds"),
    [({"as": "succeeded", "status": 201}, 7000), ({"as": "failed"}, 500), ({"as": "failed", "ttl": 40}, 40)],
)
async def test_what_is_resolved_is_kept_for_the_longest_that_any_route_keeps_it(
    document: dict[str, Any], seconds: float
) -> None:
    """A record doesn't say its route, and what is forgotten too soon is executed again."""
    routes = [{"path": "/long", "ttl": 7000}, {"path": "/short", "ttl": 60, "error_ttl": 500}]
    rules = {"ttl": 2000, "error_ttl": 30}
    async with (
        Upstream(resetting_after()) as upstream,
        guarded(upstream.url, idempotency=rules, routes=routes) as client,
    ):
        record = await unknown(client)
        assert (await post(client, f"{record}/resolve", document)).status_code == 200
        assert seconds - 20 < (await get(client, record)).json()["expires_in"] <= seconds


async def test_in_flight_needs_force() -> None:
    release = asyncio.Event()
    async with Upstream(answering(OK, after=release)) as upstream, guarded(upstream.url) as client:
        first = asyncio.create_task(pay(client, "k-1"))
        await upstream.received(1)
        (shown,) = (await get(client, state="in-flight")).json()["records"]
        record = shown["id"]
        assert 0 < shown["lease_left"] <= 30
        refused = await post(client, f"{record}/release", {})
        assert (refused.status_code, refused.json()["resolution"]) == (409, "in-flight")
        for action in ("release", "resolve"):
            given = {"force": True, "attempt": 7} | ({"as": "failed"} if action == "resolve" else {})
            other = await post(client, f"{record}/{action}", given)
            assert (other.status_code, other.json()["resolution"]) == (409, "other-attempt")
        assert (await post(client, f"{record}/release", {"force": True})).status_code == 200
        release.set()
        assert (await first).status_code == 200


async def test_what_can_not_be_an_answer_is_not_written() -> None:
    success = {"as": "succeeded", "status": 201}
    async with Upstream(resetting_after()) as upstream, guarded(upstream.url) as client:
        record = await unknown(client)
        for document in (
            {},
            {"as": "unknown"},
            {"as": "succeeded"},
            {"as": "failed", "body": "x"},
            {"as": "failed", "ttl": 0},
            success | {"status": 199},
            success | {"status": 204, "body": "x"},
            success | {"headers": [["x", "a\r\nset-cookie: b"]]},
            success | {"headers": [["x y", "a"]]},
            success | {"headers": [["Transfer-Encoding", "chunked"]]},
            success | {"headers": [["Idempotent-Replayed", "true"]]},
            success | {"body": "%%", "body_encoding": "base64"},
            success | {"surprise": 1},
        ):
            answer = await post(client, f"{record}/resolve", document)
            assert answer.status_code == 400, document
        assert (await get(client, record)).json()["state"] == "unknown"


async def test_what_names_no_record_of_ours_is_refused() -> None:
    async with guarded(f"http://127.0.0.1:{free_port()}") as client:
        for identifier in ("x", "a:b", "..", "%2e%2e", "a" * 20, f"{'a' * 20}:{'b' * 21}", f"other:{'a' * 20}"):
            assert (await get(client, identifier)).status_code in (400, 404)
            assert (await post(client, f"{identifier}/release", {})).status_code in (400, 404)


async def test_a_record_that_is_not_there_is_not_found_and_methods_are_checked() -> None:
    nobody = f"{'a' * 20}:{'b' * 20}"
    async with guarded(f"http://127.0.0.1:{free_port()}") as client:
        assert (await get(client, nobody)).status_code == 404
        assert (await post(client, f"{nobody}/release", {})).json()["resolution"] == "absent"
        assert (await get(client, "find")).status_code == 405
        assert (await get(client, f"{nobody}/release")).status_code == 405
        assert (await post(client, nobody, {})).status_code == 405
        assert (await get(client, f"{nobody}/burn")).status_code == 404
        too_much = " " * MOST_BYTES
        assert (await post(client, "find", too_much)).status_code == 413
        assert (await client.head(RECORDS, headers=operator())).status_code == 200


async def test_another_namespace_is_out_of_reach(redis_url: str) -> None:
    async with Upstream(resetting_after()) as upstream:
        async with guarded(upstream.url, cache=redis_url, cache_timeout=10, namespace="ops-one") as client:
            record = await unknown(client)
        async with guarded(upstream.url, cache=redis_url, cache_timeout=10, namespace="ops-two") as client:
            assert (await get(client, record)).status_code == 404
            assert (await post(client, f"{record}/release", {"force": True})).status_code == 404
            assert (await get(client)).json()["records"] == []
        async with guarded(upstream.url, cache=redis_url, cache_timeout=10, namespace="ops-one") as client:
            assert (await get(client, record)).json()["state"] == "unknown"
            assert (await post(client, f"{record}/release", {})).status_code == 200


async def test_a_cache_that_is_away_is_503() -> None:
    cache = f"redis://:password-is-secret@127.0.0.1:{free_port()}"
    async with guarded(f"http://127.0.0.1:{free_port()}", cache=cache) as client:
        answer = await get(client)
        assert answer.status_code == 503
        assert "password" not in answer.text


async def test_the_policy_is_published() -> None:
    routes = [
        {"path": "/payments/*", "methods": ["POST", "PUT"], "on_missing_key": "reject", "status": {402: "success"}}
    ]
    async with served(f"http://127.0.0.1:{free_port()}", routes=routes, idempotency={"ttl": 60}) as (client, _):
        policy = (await client.get("/_oncegate/policy")).json()
    first, default = policy["routes"]
    assert policy["key"]["characters"] == [1, 255]
    assert (first["path"], first["methods"], first["required"]) == ("/payments/*", ["POST", "PUT"], True)
    assert (default["path"], default["methods"], default["required"]) == ("*", ["POST", "PATCH"], False)
    assert first["expiry"] == {"success": 60, "error": 60, "unknown": 60}
    assert "402" in first["statuses"]["success"]
    assert default["statuses"] == {
        "success": ["200-306", "309-399"],
        "error": ["400", "402", "404-407", "409-424", "426-428", "430-501", "503", "505-599"],
        "unknown": ["502", "504"],
        "not_kept": ["307-308", "401", "403", "408", "425", "429"],
    }
    assert default["scope"] == {"headers": ["Authorization"], "claims": [], "required": False}


async def test_what_was_looked_at_is_what_is_resolved_even_if_a_retry_takes_over_meanwhile() -> None:
    key, prints = f"n:{'a' * 20}:{'b' * 20}", b"f" * 16
    lease: dict[str, Any] = {"fingerprint": prints, "lease_ms": 30_000, "retention_ms": 60_000}

    class Overtaken(MemoryCache):
        """Between an operator's look and word, a retry takes over."""

        async def peek(self, key: str) -> Claim | None:
            held = await super().peek(key)
            assert (await self.claim(key, ClaimRequest(b"2" * 16, takeover=frozenset({State.UNKNOWN}), **lease))).won
            return held

    cache = Overtaken()
    await cache.claim(key, ClaimRequest(token=b"1" * 16, **lease))
    done: dict[str, Any] = {"fingerprint": prints, "attempt": 1, "state": State.UNKNOWN, "response": None}
    await cache.complete(key, Record(token=b"1" * 16, **done), ttl_ms=60_000)
    resolution = await Records(cache, "n", []).resolve(key[2:], ResolveRequest(None, force=True), Author())
    assert resolution is Resolution.OTHER_ATTEMPT
    held = await cache.get(key)
    assert held is not None
    assert (held.record.state, held.record.attempt) == (State.IN_FLIGHT, 2)


async def test_refused_log_ins_are_counted_and_logged_within_bounds(caplog: pytest.LogCaptureFixture) -> None:
    async with Upstream(answering(OK)) as upstream, guarded(upstream.url) as client:
        for _ in range(MOST_LINES + 5):
            assert (await client.get(RECORDS, headers=operator("a-guess"))).status_code == 401
        assert (await get(client)).status_code == 200
        lines = [record.getMessage() for record in caplog.records if record.name == "oncegate.operators"]
        assert lines == ["a log-in of an operator was refused: wrong or no token, from 127.0.0.1"] * MOST_LINES
        assert "a-guess" not in caplog.text
        shown = (await client.get("/_oncegate/metrics")).text
        assert f"oncegate_logins_refused_total {MOST_LINES + 5}.0" in shown


async def test_a_record_shows_the_method_and_the_route() -> None:
    routes = [{"path": "/orders/*", "methods": ["POST", "PUT"]}]
    async with Upstream(resetting_after()) as upstream, guarded(upstream.url, routes=routes) as client:
        for path, route in (("/orders/7", "/orders/*"), ("/payments", "*")):
            answer = await pay(client, "k-1", path=path, caller=path)
            shown = (await get(client, answer.json()["record"])).json()
            assert (shown["state"], shown["method"], shown["route"]) == ("unknown", "POST", route)

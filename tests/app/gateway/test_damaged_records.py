"""Whatever is found in Redis where a record should be: the answer is the original one, or says that the record can't be read.

Rules of docs/contract.md: R4.20, R5.30.
"""

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import orjson
import pytest

from oncegate.cache.codec import decode, encode, encode_claim
from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.record import ClaimRequest, Record, State, StoredResponse, Trace
from testing.served import served
from testing.servers import RedisServer
from testing.upstreams import OK, Upstream, answering

TOKEN = "the-operators-token"
OPERATOR = {"authorization": f"Bearer {TOKEN}"}
BODY = b'{"id":17,"note":"paid"}'
LEASE = {"lease": 3600}
FIXED = 42


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


class Place:
    """A gateway, and one record of it in Redis."""

    def __init__(self, client: httpx.AsyncClient, redis: RedisServer, namespace: str) -> None:
        self.client = client
        self._redis = redis
        self._namespace = namespace

    async def pay(self, *, whole: bool = True) -> httpx.Response:
        """A request that can be answered at once, or (in pieces) by way of the middleware."""

        async def pieces() -> AsyncIterator[bytes]:
            for piece in (BODY[:5], BODY[5:]):
                yield piece

        headers = {"idempotency-key": "k-1", "authorization": "Bearer alice", "x-request-id": "the-same"}
        return await self.client.post("/payments", content=BODY if whole else pieces(), headers=headers)

    @property
    def key(self) -> bytes:
        (key,) = self._redis.command("KEYS", f"{self._namespace}:*")
        return bytes(key)

    @property
    def id(self) -> str:
        return self.key.decode().partition(":")[2]

    def read(self) -> bytes:
        return bytes(self._redis.command("GET", self.key))

    def plant(self, data: bytes) -> None:
        self._redis.command("SET", self.key, data, "KEEPTTL")


@pytest.fixture
async def place(redis_server: RedisServer) -> AsyncIterator[Place]:
    namespace = redis_server.key("damaged").replace(":", "-")
    settings: dict[str, Any] = {"cache": redis_server.url, "namespace": namespace, "cache_timeout": 30}
    async with (
        Upstream(answering(OK)) as upstream,
        served(upstream.url, admin_token=TOKEN, idempotency=LEASE, **settings) as (client, _),
    ):
        yield Place(client, redis_server, namespace)


def damaged(data: bytes) -> Iterator[bytes]:
    """What becomes of a record whose bytes don't stay as they are."""
    for at in range(len(data)):
        flip = (1, 0x20, 0x80)[at % 3]
        yield data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
    yield from (data[:size] for size in range(len(data)))
    yield from (data + more for more in (b"\0", b"x", b"}", b"\r\n", data))
    yield from (data[:at] + data[at + 1 :] for at in range(len(data)))
    yield from (data[:at] + data[at : at + 7] + data[at:] for at in range(0, len(data), 3))


def rewritten(data: bytes) -> Iterator[bytes]:
    """What becomes of it when its head is written anew, and the head's length with it: other values, values that come twice."""
    length = int.from_bytes(data[38:FIXED], "big")
    head, body = data[FIXED : FIXED + length], data[FIXED + length :]
    members = orjson.loads(head)
    odd: list[Any] = [None, True, -1, 0, 42, 101, 999, 2**63, 1e308, "", "200", [], {}, [["a", "b\r\nc: d"]]]
    odd += [[["content-length", "1"], ["content-length", "2"]], [["transfer-encoding", "chunked"]], [["a", "\0"]]]
    heads = [orjson.dumps(members | {name: value}) for name in members for value in odd if value != members[name]]
    heads += [orjson.dumps({name: members[name] for name in members if name != gone}) for gone in members]
    heads += [head.replace(b'"t":', b'"t":%b,"t":' % value) for value in (b"NaN", b"1", b"1e400", b"9" * 400)]
    heads += [head.replace(b'"s":', b'"s":%b,"x":' % value) for value in (b"NaN", b"42", b"-0", b"9" * 5000)]
    heads += [head.replace(b'"h":[', b'"h":[["x","\xff"],'), b"[" * 3000, b"{}", b"", head + b" "]
    for each in heads:
        yield data[:38] + len(each).to_bytes(4, "big") + each + body
    for size in (0, 1, length - 1, length + 1, len(data), 2**31, 2**32 - 1):
        yield data[:38] + size.to_bytes(4, "big") + data[FIXED:]


async def judge(place: Place, data: bytes, original: httpx.Response, *, whole: bool) -> bool:
    """Whether it was told as unreadable."""
    place.plant(data)
    answer = await place.pay(whole=whole)
    if answer.status_code == original.status_code and answer.content == original.content:
        fields = {name: value for name, value in answer.headers.items() if name not in ("date", "cache-status")}
        assert fields == {name: value for name, value in original.headers.items() if name in fields}, data
        return False
    assert (answer.status_code, answer.json().get("code")) == (500, "record-unreadable"), (data, answer.content)
    assert answer.json()["record"] == place.id
    return True


def test_no_damaged_response_can_be_read() -> None:
    lines = ((b"content-type", b"text/plain"), (b"content-length", b"2"))
    trace = Trace("vm/1", 1_700_000_000_000, 5, "", "POST", "*")
    data = encode(Record(State.SUCCEEDED, b"t" * 16, b"f" * 16, 1, StoredResponse(200, lines, b"ok", 1), trace=trace))
    for each in {*damaged(data), *rewritten(data)} - {data}:
        with pytest.raises(RecordUnreadable):
            decode(each, 60_000)


@pytest.mark.parametrize("whole", [True, False])
async def test_a_damaged_response_is_never_replayed_as_if_whole(
    place: Place, whole: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await place.pay()
    original = await place.pay()
    assert original.headers["idempotent-replayed"] == "true"
    data = place.read()
    step = 5 if whole else 11  # all of them are read above, and the same decisions are made by another way
    for each in [*damaged(data)][::step] + [*rewritten(data)][::step]:
        caplog.clear()
        if await judge(place, each, original, whole=whole):
            assert f"record {place.id}: " in caplog.text
        else:
            assert each == data
    place.plant(data)
    assert (await place.pay(whole=whole)).content == original.content


async def test_a_record_without_its_seal_is_not_believed(place: Place) -> None:
    await place.pay()
    original = await place.pay()
    data = place.read()
    members = orjson.loads(re.sub(rb',"S":"\w+"', b"", data[FIXED : data.index(b"}", FIXED) + 1]))
    for order in ("sht", "hst"):
        head = orjson.dumps({name: members[name] for name in order})
        unsealed = data[:38] + len(head).to_bytes(4, "big") + head + original.content
        assert await judge(place, unsealed, original, whole=True)


@pytest.mark.parametrize("whole", [True, False])
async def test_damaged_records_of_all_states_end_in_an_answer(place: Place, whole: bool) -> None:
    """No hang, no bare 500. What isn't replayed may pass for what a release has restored, which says the same."""
    await place.pay()
    token, fingerprint = place.read()[2:18], place.read()[18:34]
    trace = Trace("vm/1", 1_700_000_000_000, None, "", "POST", "*")
    unknown = encode(Record(State.UNKNOWN, token, fingerprint, 3, trace=trace))
    for data in (encode_claim(ClaimRequest(token, fingerprint, 0, 10, trace=trace)), unknown):
        place.plant(data)
        original = await place.pay()
        assert original.status_code == 409
        for each in [*damaged(data)][:: 3 if whole else 11]:
            await judge(place, each, original, whole=whole)


async def test_operators_are_told_which_record_can_not_be_read(place: Place) -> None:
    await place.pay()
    data = place.read()
    page = f"/_oncegate/records/{place.id}"
    for each in [*[*damaged(data)][::7], *[*rewritten(data)][::4]]:  # the same reading as for replays
        place.plant(each)
        shown = await place.client.get(page, headers=OPERATOR)
        assert shown.status_code in (200, 500)
        if shown.status_code == 500:
            assert shown.json()["record"] == place.id
        listed = await place.client.get("/_oncegate/records/", headers=OPERATOR)
        assert listed.status_code == 200
        (record,) = listed.json()["records"]
        assert record["id"] == place.id
        for action, payload in (("release", {}), ("resolve", {"as": "failed"})):
            answer = await place.client.post(f"{page}/{action}", content=orjson.dumps(payload), headers=OPERATOR)
            assert answer.status_code in (200, 409, 500)
            assert answer.headers["content-type"].startswith("application/")


async def test_what_was_damaged_into_another_state_is_not_executed_again(redis_server: RedisServer) -> None:
    """Not even by rules under which failed and unknown attempts are."""
    namespace = redis_server.key("again").replace(":", "-")
    settings: dict[str, Any] = {"cache": redis_server.url, "namespace": namespace, "cache_timeout": 30}
    rules = LEASE | {"on_error": "retry", "on_unknown": "retry"}
    async with Upstream(answering(OK)) as upstream, served(upstream.url, idempotency=rules, **settings) as (client, _):
        place = Place(client, redis_server, namespace)
        await place.pay()
        data = place.read()
        token, fingerprint = data[2:18], data[18:34]
        flight = encode_claim(ClaimRequest(token, fingerprint, 0, 10, trace=Trace("vm/1", 1_700_000_000_000)))
        for stored, states in ((data, b"FUIA\0"), (flight, b"SFUA\0")):
            for state in states:
                place.plant(stored[:1] + bytes([state]) + stored[2:])
                answer = await place.pay()
                assert (answer.status_code, answer.json()["code"]) == (500, "record-unreadable"), (stored, state)
        assert upstream.arrivals == 1
        place.plant(encode(Record(State.FAILED, token, fingerprint, 1, StoredResponse(500, (), b"x", 1))))
        assert (await place.pay()).status_code == 200, "what really failed is"
        place.plant(encode(Record(State.UNKNOWN, token, fingerprint, 1, trace=Trace("vm/1", 7))))
        assert (await place.pay()).status_code == 200
        assert upstream.arrivals == 3

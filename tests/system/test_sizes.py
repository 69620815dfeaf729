"""Bodies over the caps: too large a request is refused whole, too large a response reaches its client whole.

Rules of docs/contract.md: R2.12, R3.14.
"""

import asyncio

import pytest

from testing.caller import BODY_MARK, Caller, RawClient, fresh_key, raw_post, slug
from testing.gateway import Gateway
from testing.ledger import Ledger, Reply

OVER = BODY_MARK + b"x" * 1000
CHUNKED = b"transfer-encoding: chunked"


def by_length(key: str) -> bytes:
    return raw_post(key, OVER, "/small/payments")


def chunked(key: str) -> bytes:
    head = raw_post(key, b"", "/small/payments").replace(b"content-length: 0", CHUNKED)
    return (
        head
        + b"".join(b"%x\r\n%b\r\n" % (100, OVER[at : at + 100]) for at in range(0, 1000, 100))
        + b"5\r\n12345\r\n0\r\n\r\n"
    )


def announced_only(key: str) -> bytes:
    return raw_post(key, b"", "/small/payments").replace(b"content-length: 0", b"content-length: 999999999999")


@pytest.mark.parametrize("request_of", [by_length, chunked, announced_only])
async def test_a_request_over_the_cap_gets_413_and_its_key_stays_free(
    gateway: Gateway, ledger: Ledger, caller: Caller, request_of: object
) -> None:
    key = fresh_key()
    assert callable(request_of)
    with RawClient(gateway) as client:
        client.send(request_of(key))
        answer = client.answer()
        assert answer.status == 413
        assert b'"payload-too-large"' in answer.body
        client.receive_all()  # it closes: what else would come is not a request
    assert ledger.arrivals(key) == []
    assert (await caller.post(gateway, key, "/small/payments")).status_code == 201
    assert ledger.attempts(key) == ["1"]


async def test_a_response_over_the_cap_streams_whole_and_a_retry_is_told_without_its_body(
    gateway: Gateway, ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    piece = bytes(range(250)) * 10
    with ledger.gate() as gate, RawClient(gateway) as client:
        ledger.answer(key, Reply(200, (("x-kept", "yes"),), pieces=[piece, piece, gate, piece, b"the end"]))
        client.send(raw_post(key, path="/small/payments"))
        head = client.receive_until(piece[-10:])  # past the cap of 1000 while the end does not exist yet
        gate.open()
        rest = client.receive_until(b"the end\r\n0\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert (head + rest).count(piece[:200]) == 30
    again = await caller.settled(gateway, key, "/small/payments")
    assert (again.status_code, slug(again)) == (409, "duplicate")
    original = again.json()["original_result"]
    assert original["status"] == 200
    assert original["body_omitted"] is True
    assert "body" not in original
    assert ["x-kept", "yes"] in original["headers"]
    assert ledger.attempts(key) == ["1"]


async def test_a_large_response_is_not_held_back_nor_cut_by_a_client_that_reads_slowly(
    gateway: Gateway, ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    pieces = [b"%07d," % number * 8192 for number in range(100)]  # 6.5 MB over a cap of 100 kB
    ledger.answer(key, Reply(200, pieces=pieces))
    with RawClient(gateway) as client:
        client.send(raw_post(key, path="/streams/export"))
        await asyncio.sleep(0.3)  # the client's pace: longer than filling every buffer in between takes
        answer = client.answer()
    assert answer.body == b"".join(pieces)
    assert slug(await caller.settled(gateway, key, "/streams/export")) == "duplicate"


async def test_a_response_of_exactly_the_cap_is_kept(gateway: Gateway, ledger: Ledger, caller: Caller) -> None:
    for size, code in ((1000, None), (1001, "duplicate")):
        key = fresh_key()
        ledger.answer(key, Reply(200, body=b"x" * size))
        assert (await caller.post(gateway, key, "/small/payments")).content == b"x" * size
        again = await caller.post(gateway, key, "/small/payments")
        assert slug(again) == code

"""Clients that leave: in mid-request their attempt goes on, in mid-upload there was no request.

Rules of docs/contract.md: R1.4, R2.11.
"""

import httpx
import pytest

from testing.caller import BODY_MARK, Caller, RawClient, fresh_key, is_replay, raw_post
from testing.gateway import DEADLINE, Gateway
from testing.ledger import Ledger, Reply
from testing.waiting import until


def let_it_notice(gateway: Gateway) -> None:
    """Returns when the gateway's loop has gone round: a connection that was closed before this is closed for it too."""
    for _ in range(3):
        assert httpx.get(f"{gateway.url}/_oncegate/healthz", timeout=DEADLINE).status_code == 200


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_an_attempt_whose_client_leaves_is_finished_and_recorded(
    gateway: Gateway, ledger: Ledger, caller: Caller, reset: bool
) -> None:
    key = fresh_key()
    with ledger.gate() as gate, RawClient(gateway) as client:
        ledger.answer(key, Reply(gate=gate), Reply(500))
        client.send(raw_post(key))
        await until(lambda: ledger.arrivals(key), "the request arrives")
        client.leave(reset=reset)
        let_it_notice(gateway)
        gate.open()
    again = await caller.settled(gateway, key)
    assert again.status_code == 201
    assert is_replay(again)
    assert ledger.attempts(key) == ["1"]


async def test_a_client_that_leaves_in_the_middle_of_a_stream_finds_the_whole_of_it_later(
    gateway: Gateway, ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    with ledger.gate() as gate, RawClient(gateway) as client:
        ledger.answer(key, Reply(200, pieces=[b"begun ", gate, *[b"%06d" % number for number in range(1000)]]))
        client.send(raw_post(key))
        client.receive_until(b"begun")
        client.leave(reset=True)
        let_it_notice(gateway)
        gate.open()
    again = await caller.settled(gateway, key)
    assert is_replay(again)
    assert again.content == b"begun " + b"".join(b"%06d" % number for number in range(1000))
    assert ledger.attempts(key) == ["1"]


async def test_a_waiter_that_leaves_disturbs_neither_the_attempt_nor_other_waiters(
    gateway: Gateway, ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    with ledger.gate() as gate, RawClient(gateway) as impatient:
        ledger.answer(key, Reply(gate=gate), Reply(500))
        first = caller.send(gateway, key)
        await until(lambda: ledger.arrivals(key), "the request arrives")
        impatient.send(raw_post(key, BODY_MARK + b"a-payment", "/payments", "prefer: wait=30"))
        patient = caller.send(gateway, key, wait=30)
        let_it_notice(gateway)
        impatient.leave()
        let_it_notice(gateway)
        gate.open()
        answers = [await first, await patient]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].content == answers[1].content
    assert ledger.attempts(key) == ["1"]


WHOLE = BODY_MARK + b"x" * 5000
UPLOADS = {
    "by length": raw_post("KEY", WHOLE),
    "chunked": raw_post("KEY", b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
    + b"%x\r\n%b\r\n0\r\n\r\n" % (len(WHOLE), WHOLE),
    "one byte short": raw_post("KEY", WHOLE),
    "without its last chunk": raw_post("KEY", b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
    + b"%x\r\n%b\r\n0\r\n\r\n" % (len(WHOLE), WHOLE),
}
MISSING = {"by length": 2000, "chunked": 2000, "one byte short": 1, "without its last chunk": len(b"0\r\n\r\n")}


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("name", UPLOADS)
async def test_an_upload_that_breaks_off_was_no_request(
    gateway: Gateway, ledger: Ledger, caller: Caller, name: str, reset: bool
) -> None:
    key = fresh_key()
    request = UPLOADS[name].replace(b"KEY", key.encode())
    with RawClient(gateway) as client:
        client.send(request[: -MISSING[name]])
        let_it_notice(gateway)
        client.leave(reset=reset)
        let_it_notice(gateway)
    answer = await caller.post(gateway, key, body=WHOLE)
    assert answer.status_code == 201  # neither in flight, nor unknown, nor another payload's key
    assert not is_replay(answer)
    assert [arrival.body for arrival in ledger.arrivals(key)] == [WHOLE]
    assert ledger.attempts(key) == ["1"]

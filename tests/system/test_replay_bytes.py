"""A replay is the first answer, byte for byte, whatever the bytes.

Rules of docs/contract.md: R1.2, R3.11.
"""

import gzip
import os

import pytest

from testing.caller import RawAnswer, RawClient, fresh_key, raw_post
from testing.gateway import Gateway
from testing.ledger import Ledger, Reply

ADDED = {"idempotency-key", "cache-status", "idempotent-replayed"}
NOT_STORED = {"date", "set-cookie", "connection", "transfer-encoding", "content-length"}

ANSWERS = {
    "binary": Reply(headers=(("content-type", "application/octet-stream"),), body=bytes(range(256)) * 40),
    "compressed": Reply(headers=(("content-encoding", "gzip"),), body=gzip.compress(os.urandom(3000), mtime=0)),
    "empty": Reply(200, body=b""),
    "no content": Reply(204, body=b""),
    "chunked": Reply(200, pieces=[b"one,", b"two,", b"\r\n0\r\n\r\n", os.urandom(70_000)]),
    "repeated headers": Reply(
        headers=(("link", "<a>"), ("x-order", "1"), ("link", "<b>"), ("x-order", "0"), ("link", "<a>")), body=b"x"
    ),
    "header bytes": Reply(headers=(("x-odd", "caf\xe9 ;=,\"'\\ \tend"), ("x-empty", "")), body=b"x"),
    "set-cookie": Reply(headers=(("set-cookie", "a=1"), ("set-cookie", "b=2"), ("x-kept", "yes")), body=b"x"),
    "redirect": Reply(303, headers=(("location", "/payments/1"),), body=b""),
    "json with long digits": Reply(200, body=b'{"id": 9007199254740993123, "list": [], "x": 1.0}'),
}


def exchange(gateway: Gateway, request: bytes) -> RawAnswer:
    with RawClient(gateway) as client:
        client.send(request)
        return client.answer()


def end_to_end(answer: RawAnswer) -> list[tuple[str, str]]:
    return [field for field in answer.fields if field[0] not in ADDED | NOT_STORED]


@pytest.mark.parametrize("name", ANSWERS)
def test_a_replay_has_the_status_the_headers_and_the_body_of_the_first_answer(
    gateway: Gateway, ledger: Ledger, name: str
) -> None:
    key = fresh_key()
    ledger.answer(key, ANSWERS[name], Reply(500, body=b"a second execution"))
    first = exchange(gateway, raw_post(key))
    again = exchange(gateway, raw_post(key))
    assert first.values("idempotent-replayed") == []
    assert again.values("idempotent-replayed") == ["true"]
    assert (again.status, end_to_end(again), again.body) == (first.status, end_to_end(first), first.body)
    reply = ANSWERS[name]
    assert (first.status, first.body) == (reply.status, reply.body or b"".join(map(_bytes, reply.pieces)))
    assert [(name, value.strip()) for name, value in reply.headers if name != "set-cookie"] == [
        field for field in end_to_end(first) if field[0] != "via" and field[0] != "idempotency-key"
    ]
    assert again.values("set-cookie") == []
    assert len(ledger.arrivals(key)) == 1


def _bytes(piece: object) -> bytes:
    assert isinstance(piece, bytes)
    return piece


def test_a_head_request_passes_with_its_length_and_without_a_record(gateway: Gateway, ledger: Ledger) -> None:
    key = fresh_key()
    ledger.answer(key, Reply(200, body=b"12345"))
    request = raw_post(key, b"").replace(b"POST", b"HEAD", 1)
    for arrivals in (1, 2):
        with RawClient(gateway) as client:
            client.send(request + b"GET /_oncegate/healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            answers = client.receive_all()
        head, _, behind = answers.partition(b"\r\n\r\n")
        assert b"content-length: 5" in head.lower()
        assert b"cache-status" not in head.lower()
        assert behind.startswith(b"HTTP/1.1 200")  # no byte of a body between the two answers
        assert len(ledger.arrivals(key)) == arrivals


def test_a_stream_begins_before_its_end_exists_and_its_replay_is_whole(gateway: Gateway, ledger: Ledger) -> None:
    key = fresh_key()
    with ledger.gate() as gate, RawClient(gateway) as client:
        ledger.answer(key, Reply(200, pieces=[b"the beginning", gate, b" and the end"]))
        client.send(raw_post(key))
        client.receive_until(b"the beginning")
        gate.open()
        client.receive_until(b" and the end")
        client.receive_until(b"0\r\n\r\n")
    again = exchange(gateway, raw_post(key))
    assert again.body == b"the beginning and the end"
    assert again.values("idempotent-replayed") == ["true"]

"""An issuer's answer that never ends is given up in time, wherever it drips: a bound on each read is none on the whole."""

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from oncegate import JwtSettings
from oncegate.middleware.tokens import key_source
from oncegate.middleware.tokens.key_set import UnusableKeys
from oncegate.middleware.tokens.key_source import KeySource
from testing.issuer import Issuer, SigningKey

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
DRIPS = {
    "head": (b"HTTP/1.1 200 OK\r\n", b"x-a: b\r\n"),
    "status": (b"HTTP/1.1 200 ", b"O"),
    "interim answers": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "chunk line": (CHUNKED + b"1;", b"a"),
    "chunks": (CHUNKED, b"1\r\n \r\n"),
    "trailers": (CHUNKED + b"0\r\n", b"x-a: b\r\n"),
    "body": (HEAD + b"content-length: 100000\r\n\r\n", b" "),
}


@contextmanager
def dripping(begin: bytes, drop: bytes, pause: float = 0.02) -> Iterator[str]:
    """A server that sends ``begin``, and then ``drop`` for ever."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve() -> None:
        try:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(begin)
                while not over.wait(pause):
                    connection.sendall(drop)
        except OSError:  # the client has left, or the test is over
            return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/jwks.json"
    finally:
        over.set()
        listener.close()
        thread.join(30)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("where", DRIPS)
def test_an_answer_that_never_ends_is_given_up(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_source, "TIMEOUT", 0.4)
    with dripping(*DRIPS[where]) as url:
        source = KeySource(JwtSettings(jwks=url))
        with pytest.raises(UnusableKeys):
            source.read()


@pytest.mark.timeout(300)
def test_wherever_it_begins_to_drip_it_is_given_up(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_source, "TIMEOUT", 0.2)
    draw = random.Random(25)
    whole = CHUNKED + b"5\r\n{   }\r\n0\r\n\r\n"
    for _ in range(200 if pytestconfig.getoption("--long") else 10):
        at = draw.randrange(len(whole) - 2)
        with dripping(whole[:at], draw.choice([b"\x20", b"a", b"x: y\r\n"]), pause=0.01) as url:
            began = time.monotonic()
            with pytest.raises(UnusableKeys):
                KeySource(JwtSettings(jwks=url)).read()
            assert time.monotonic() - began < 30


def test_two_keys_of_one_id_both_count() -> None:
    first, second = SigningKey("same"), SigningKey("same")
    from oncegate.middleware.tokens.key_set import parse_keys

    keys = parse_keys(Issuer(first, second).jwks(), ("ES256",))
    assert len(keys.find("same", "ES256")) == 2

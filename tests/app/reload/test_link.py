"""Messages between a parent and its worker: whole, in their order, however the bytes arrive; and an end that is gone."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from oncegate.app.operators.reloading import Reloaded
from oncegate.app.reload.link import Answered, Installed, InstallNew, Link, PrepareNew, Requested
from oncegate.app.settings.gateway import GatewaySettings


@pytest.fixture
def links() -> Iterator[tuple[Link, Link]]:
    one, other = socket.socketpair()
    with one, other:
        yield Link(one), Link(other)


def received(link: Link, count: int) -> list[object]:
    found: list[object] = []
    while len(found) < count:
        found += link.receive()
    return found


def test_messages_arrive_whole_and_in_their_order(links: tuple[Link, Link]) -> None:
    ours, theirs = links
    given: dict[str, Any] = {
        "routes": [{"path": "/a", "ttl": 5, "status": {"4xx": "success"}}],
        "idempotency": {"docs_url": "https://d.example/" + "x" * 300_000},  # more than a socket takes at once
    }
    settings = GatewaySettings(
        upstream="http://127.0.0.1:9",
        secret="a secret of 32 bytes, or of more than it",
        **given,
    )
    messages = [PrepareNew(1, settings), InstallNew(1), Answered(7, Reloaded("0" * 12, "why", ("port",)))]

    def send() -> None:
        for each in messages:
            ours.send(each)

    sending = threading.Thread(target=send)
    sending.start()
    assert received(theirs, 3) == messages
    sending.join()
    theirs.send(Requested(3))
    theirs.send(Installed(1))
    assert received(ours, 2) == [Requested(3), Installed(1)]


def test_an_end_that_is_gone_is_an_error(links: tuple[Link, Link]) -> None:
    ours, theirs = links
    theirs.send(Requested(1))
    theirs.close()
    assert ours.receive() == [Requested(1)]
    with pytest.raises(EOFError):
        ours.receive()
    with pytest.raises(OSError, match="Broken pipe"):
        ours.send(Requested(2))


def test_nobody_waits_for_ever_for_one_that_takes_nothing(links: tuple[Link, Link]) -> None:
    ours, _ = links
    ours.channel.settimeout(0.1)
    with pytest.raises(TimeoutError):
        ours.send(b"x" * 3_000_000)

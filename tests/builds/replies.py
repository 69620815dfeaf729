"""Calls about Redis's replies, for `tests.builds.driver`: a link is handed bytes, and its transport keeps what is written."""

import asyncio
import ssl
from types import SimpleNamespace
from typing import Any

from hiredis import ReplyError

from oncegate.cache.errors import CacheError
from oncegate.cache.record import ClaimRequest
from oncegate.cache.redis.calls import PendingClaim, PendingOutcome, Soon
from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.connection.pipe import Bounds, Link
from oncegate.cache.redis.scripts import ASKING, CLAIM, COMPLETE, SCRIPTS, pack


class Wire(asyncio.Transport):
    """A transport that keeps what is written. ``breaks``: writing fails."""

    def __init__(self, breaks: bool) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self._breaks = breaks

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._breaks:
            raise OSError
        self.seen.append(bytes(data))

    def abort(self) -> None:
        self.seen.append("abort")

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.seen.append("taken over")

    def is_closing(self) -> bool:
        return False


class SharedConnection:
    """Has a link."""

    def __init__(self, link: Link) -> None:
        self.link = link

    async def ready(self, _: float) -> Link:
        return self.link


class Routes:
    """Keeps what is to be withdrawn. No holder is left, and no reply leads to another."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.withdrawn: list[bytes] = []

    def withdraw(self, withdrawal: Any) -> None:
        self.withdrawn.append(withdrawal.key)

    async def detour(self, *_: Any) -> None:
        return None


async def replies(calls: list[str], pieces: list[bytes], late: bool, bounds: tuple[int, int], breaks: bool) -> Any:
    """What callers are told when these bytes come in."""
    loop = asyncio.get_running_loop()
    told: list[Any] = []
    routes: Any = Routes(loop)
    link = Link(Bounds(*bounds, patience=5.0), lambda _, unanswered: told.append(("lost", unanswered)))
    wire = Wire(breaks)
    writer: Any = SimpleNamespace(transport=wire)
    link.take_over(writer)
    futures: list[asyncio.Future[Any]] = []
    for number, name in enumerate(calls):
        key = b"%d" % number
        deadline = loop.time() + (0.0 if late else 30.0)
        try:
            _ask(link, routes, name, key, deadline, told, futures)
        except CacheError as error:
            told.append(f"{name}: {type(error).__name__}: {error}")
    for _ in range(2):
        await asyncio.sleep(0)
    if late:
        link._on_timer()
    for piece in pieces:
        link.data_received(piece)
    for _ in range(4):
        await asyncio.sleep(0)
    told.append((link.lost, link.unanswered, list(routes.withdrawn)))
    link.connection_lost(None)
    for _ in range(4):
        await asyncio.sleep(0)
    told += [link.lost, list(routes.withdrawn), wire.seen]
    told += [_end(future) for future in futures]
    return told


def _ask(
    link: Link, routes: Any, name: str, key: bytes, deadline: float, told: list[Any], futures: list[asyncio.Future[Any]]
) -> None:
    def then(answer: Any) -> None:
        told.append((name, key, repr(answer)))

    if name == "send":
        futures.append(link.send(pack(b"PING", key), deadline))
        return
    if name == "behind":
        futures.append(link.send_behind(ASKING, pack(b"PING", key), deadline))
        return
    call: Soon[Any]
    if name == "outcome":
        call, packed = PendingOutcome(routes, key, then), COMPLETE.call(key, b"outcome", b"1")
    else:
        adopt = then if name == "adopted" else None
        request = ClaimRequest(bytes(16), b"f" * 16, 5, 5, submission=name == "submission")
        call = PendingClaim(routes, key, request, 10, adopt, then)
        packed = CLAIM.call(key, b"fresh", b"1", b"")
    session: Any = SimpleNamespace(claims=SharedConnection(link), bodies=SharedConnection(link))
    call.session, call.packed = session, packed
    link.put(packed, deadline, call)


def _end(future: "asyncio.Future[Any]") -> str:
    if not future.done():
        return "open"
    if future.cancelled():
        return "cancelled"
    error = future.exception()
    return repr(future.result()) if error is None else f"{type(error).__name__}: {error}"


def read(kind: str, reply: Any, late: bool) -> Any:
    """What a reply, as hiredis gives it, is to a claim or to an outcome."""
    if isinstance(reply, tuple):
        reply = ReplyError(reply[0])
    routes: Any = Routes(None)  # type: ignore[arg-type]  # nobody asks it
    told: list[Any] = []
    call: Any = PendingOutcome(routes, b"k", told.append)
    if kind != "outcome":
        adopt = told.append if kind == "adopted" else None
        call = PendingClaim(routes, b"k", ClaimRequest(bytes(16), b"f" * 16, 5, 5), 10, adopt, told.append)
    if late:
        call.overdue()
        call.came_late(reply)
        return [repr(answer) for answer in told], routes.withdrawn
    return call.read(reply)


def error(text: str) -> Any:
    """What an error reply means."""
    reply = ReplyError(text)
    meant = [faults.of_reply(reply), faults.of_claim_reply(reply)]
    shown = [f"{type(found).__name__}: {found}" for found in meant]
    return faults.reply_class(reply), shown, faults.redirection(reply)


def opening(name: str, *arguments: Any) -> str:
    """What it means that no connection came about."""
    kinds: dict[str, Any] = {
        "OSError": OSError,
        "TimeoutError": TimeoutError,
        "ConnectionRefusedError": ConnectionRefusedError,
    }
    made = kinds.get(name) or getattr(ssl, name)
    found: Exception = made(*arguments)
    if name.startswith("SSL") and arguments[-1] == "named":
        vars(found)["reason"] = "WRONG_VERSION_NUMBER"
    return repr(faults.of_opening(found, "there"))  # type: ignore[arg-type]  # odd on purpose


def version(text: str) -> Any:
    """Whether a server of this version will do."""
    return faults.check_version(text)


def packed(parts: list[bytes]) -> Any:
    """Commands with these parts."""
    said: list[Any] = [pack(*parts)]
    for script in SCRIPTS:
        for call in (script.call, script.call_ending, script.call_with):
            try:
                said.append(call(*parts))
            except (TypeError, ValueError) as wrong:
                said.append(type(wrong).__name__)
    return said

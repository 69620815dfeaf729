"""Calls about Redis's replies, for `tests.builds.driver`: a pipeline is handed bytes, and its transport keeps what is written."""

import asyncio
import ssl
from types import SimpleNamespace
from typing import Any

from hiredis import ReplyError

from oncegate.cache.errors import CacheError
from oncegate.cache.record import ClaimRequest, Record, State
from oncegate.cache.redis.calls import CallbackCall, ClaimCall, OutcomeCall
from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.connection.pipe import Bounds, PipelinedConnection
from oncegate.cache.redis.scripts import ASKING, SCRIPTS, pack

OUTCOME = Record(State.UNKNOWN, bytes(16), bytes(16), 1)


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
    """Has a pipeline."""

    def __init__(self, pipeline: PipelinedConnection) -> None:
        self.pipeline = pipeline

    async def ready(self, _: float) -> PipelinedConnection:
        return self.pipeline


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
    events: list[Any] = []
    routes: Any = Routes(loop)
    pipeline = PipelinedConnection(
        Bounds(*bounds, patience=5.0), lambda _, unanswered: events.append(("lost", unanswered))
    )
    wire = Wire(breaks)
    writer: Any = SimpleNamespace(transport=wire)
    pipeline.take_over(writer)
    futures: list[asyncio.Future[Any]] = []
    for number, name in enumerate(calls):
        key = b"%d" % number
        deadline = loop.time() + (0.0 if late else 30.0)
        try:
            _send(pipeline, routes, name, key, deadline, events, futures)
        except CacheError as error:
            events.append(f"{name}: {type(error).__name__}: {error}")
    for _ in range(2):
        await asyncio.sleep(0)
    if late:
        pipeline._on_timer()
    for piece in pieces:
        pipeline.data_received(piece)
    for _ in range(4):
        await asyncio.sleep(0)
    events.append((pipeline.lost, pipeline.unanswered, list(routes.withdrawn)))
    pipeline.connection_lost(None)
    for _ in range(4):
        await asyncio.sleep(0)
    events += [pipeline.lost, list(routes.withdrawn), wire.seen]
    events += [_end(future) for future in futures]
    return events


def _send(
    pipeline: PipelinedConnection,
    routes: Any,
    name: str,
    key: bytes,
    deadline: float,
    events: list[Any],
    futures: list[asyncio.Future[Any]],
) -> None:
    def then(answer: Any) -> None:
        events.append((name, key, repr(answer)))

    if name == "send":
        futures.append(pipeline.send(pack(b"PING", key), deadline))
        return
    if name == "behind":
        futures.append(pipeline.send_behind(ASKING, pack(b"PING", key), deadline))
        return
    call: CallbackCall[Any]
    if name == "outcome":
        call = OutcomeCall(routes, key.decode(), OUTCOME, 1, then, None)
    else:
        adopt = then if name == "adopted" else None
        request = ClaimRequest(bytes(16), b"f" * 16, 5, 5, submission=name == "submission")
        call = ClaimCall(routes, key.decode(), request, adopt, then, None, False)
    session: Any = SimpleNamespace(claims=SharedConnection(pipeline), bodies=SharedConnection(pipeline))
    call.session = session
    pipeline.put(call.packed, deadline, call)


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
    answers: list[Any] = []
    call: Any = OutcomeCall(routes, "k", OUTCOME, 1, answers.append, None)
    if kind != "outcome":
        adopt = answers.append if kind == "adopted" else None
        call = ClaimCall(routes, "k", ClaimRequest(bytes(16), b"f" * 16, 5, 5), adopt, answers.append, None, False)
    if late:
        call.overdue()
        call.came_late(reply)
        return [repr(answer) for answer in answers], routes.withdrawn
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
    commands: list[Any] = [pack(*parts)]
    for script in SCRIPTS:
        try:
            commands.append(script.call(*parts))
        except (TypeError, ValueError) as wrong:
            commands.append(type(wrong).__name__)
    return commands

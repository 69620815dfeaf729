"""Clients as they are: they reuse keys, retry, race, leave, send wrong keys and none. The same from one seed, for any server.

Each request brings a number, and the service answers with it, so that an answer says which request it is of: a retry that is
executed gets another answer than a replay. What is decided depends on nothing but the order, which `Visitors.play` keeps.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

from testing.caller import BODY_MARK, CALLER_MARK, KEY_MARK, RawClient
from testing.own_loop import OwnLoopUpstream
from testing.upstreams import Peer
from testing.waiting import wait_until

ROUTES: list[dict[str, Any]] = [
    {"path": "/strict", "on_missing_key": "reject"},
    {"path": "/given", "on_missing_key": "generate"},
    {"path": "/small", "max_request_body": 40},
    {"path": "/loud", "raise_on_duplicate": True},
    {"path": "/large", "max_result": 1000},
    {"path": "/kept", "on_error": "replay", "status": {"500": "failure"}},
    {"path": "/again", "on_unknown": "retry", "status": {"502": "unknown"}},
    {"path": "/warned", "on_mismatch": "warn"},
    {"path": "/known", "require_scope": True},
]
PATHS = (
    "/payments",
    "/empty",
    "/fails",
    "/busy",
    "/lost",
    "/stream",
    "/moved",
    *(str(route["path"]) for route in ROUTES),
)
STATUSES = {
    "/empty": 204,
    "/fails": 500,
    "/kept": 500,
    "/busy": 429,
    "/lost": 502,
    "/again": 502,
    "/moved": 303,
    "/stream": 200,
    "/large": 200,
}
"""What the service answers on each path; 201 on all others."""
OF_ONE_CONNECTION = {"connection", "transfer-encoding", "keep-alive"}

Answer = tuple[int, list[tuple[str, str]], bytes]


class Service(OwnLoopUpstream):
    """Answers each request by its path and number. What is sent to ``/held`` waits until its key is `opened`."""

    def __init__(self) -> None:
        super().__init__()
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.arrivals: Counter[str] = Counter()
        """How many requests of each number have arrived, which is once or never."""

    def opened(self, key: str) -> None:
        self.loop.call_soon_threadsafe(self._gates[key].set)

    async def serve(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            path, number, key = (
                request.line.split()[1],
                request.value("x-number") or "",
                request.value("idempotency-key"),
            )
            self.arrivals[number] += 1
            if path == "/held":
                await self._gates[key or ""].wait()
            with suppress(ConnectionError):
                await self._answer(peer, path, number)

    async def _answer(self, peer: Peer, path: str, number: str) -> None:
        status = STATUSES.get(path, 201)
        body = b'{"receipt": "%b"}' % number.encode() + (b" " * 300_000 if path == "/large" else b"")
        lines = [f"HTTP/1.1 {status} So", "date: Thu, 01 Jan 2026 00:00:00 GMT", f"location: {path}/{number}"]
        lines += [
            "set-cookie: a=1",
            "set-cookie: b=2",
            "Idempotent-Replayed: theirs",
            "x-Note:  two  words ",
            "server: it",
        ]
        if path == "/stream":
            pieces = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (body[:5], body[5:9], body[9:])]
            head = "\r\n".join([*lines, "transfer-encoding: chunked", "", ""])
            await peer.send_pieces([head.encode(), *pieces, b"0\r\n\r\n"])
            return
        if status != 204:
            lines.append(f"content-length: {len(body)}")
        await peer.send("\r\n".join([*lines, "", ""]).encode() + (b"" if status == 204 else body))


@dataclass(frozen=True)
class Sent:
    """A request. ``key`` is the field's value, ``None`` for none."""

    path: str
    key: str | None
    caller: str = "alice"
    body: bytes = BODY_MARK + b"a-payment"
    number: int = 0

    def bytes(self) -> bytes:
        lines = [f"POST {self.path} HTTP/1.1", "host: shop.example", f"content-length: {len(self.body)}"]
        lines += [f"authorization: Bearer {CALLER_MARK}{self.caller}"] if self.caller else []
        lines += [f"idempotency-key: {self.key}"] if self.key is not None else []
        lines += [f"x-number: {self.number}", "idempotency-attempt: 7", "", ""]
        return "\r\n".join(lines).encode() + self.body


@dataclass(frozen=True)
class Step:
    """What a client does: sends ``request``, ``times`` at once; or ``leaves`` before it is answered, and retries."""

    request: Sent
    times: int = 1
    leaves: bool = False


def population(seed: int, size: int) -> list[Step]:
    """So many steps, the same for a seed. Each request has a number of its own."""
    rng = random.Random(seed)
    used: list[Sent] = []
    steps: list[Step] = []
    for number in range(size):
        kind = rng.choices(
            ["new", "retry", "payload", "path", "caller", "none", "wrong", "nobody", "race", "leaves", "large"],
            [20, 30, 6, 4, 6, 8, 4, 3, 5, 3, 4],
        )[0]
        if not used:
            kind = "new"
        again = rng.choice(used) if used else None
        sent = Sent(rng.choice(PATHS), f"{KEY_MARK}{seed}-{number}", rng.choice(["alice", "bob"]))
        if again is not None:
            changes: dict[str, dict[str, Any]] = {
                "retry": {},
                "payload": {"body": BODY_MARK + b"another"},
                "path": {"path": "/payments" if again.path != "/payments" else "/loud"},
                "caller": {"caller": "carol"},
            }
            if kind in changes:
                sent = replace(again, **changes[kind])
        if kind == "none":
            sent = replace(sent, path=rng.choice(["/payments", "/strict", "/given"]), key=None)
        elif kind == "wrong":
            sent = replace(sent, key=rng.choice(['"open', "a,b", '""']))
        elif kind == "nobody":
            sent = replace(sent, caller="")
        elif kind == "large":
            sent = replace(sent, path="/small", body=BODY_MARK + b"x" * rng.choice([60, 5000]))
        elif kind in ("race", "leaves"):
            sent = replace(sent, path="/held")
        used += [sent] if kind in ("new", "race", "leaves") else []
        steps.append(
            Step(replace(sent, number=number * 10), rng.randint(2, 4) if kind == "race" else 1, kind == "leaves")
        )
    return steps


class Visitors:
    """Those who ask ``address``, behind which ``service`` is. ``executes_all``: no request is kept from it.

    ``decided`` waits until so many more requests than when it was made were decided about: ``decided()(2)``.
    """

    def __init__(
        self,
        service: Service,
        address: tuple[str, int],
        *,
        executes_all: bool,
        decided: Callable[[], Callable[[int], None]] = lambda: lambda _: None,
        recorded: Callable[[], Callable[[int], None]] = lambda: lambda _: None,
    ) -> None:
        self._service = service
        self.address = address
        self._executes_all = executes_all
        self._decided = decided
        self._recorded = recorded

    def play(self, steps: Sequence[Step], between: Callable[[int], None] = lambda _: None) -> dict[int, Answer]:
        """The answers, by the requests' numbers. ``between`` is called before each step."""
        answers: dict[int, Answer] = {}
        for index, step in enumerate(steps):
            between(index)
            if step.leaves:
                self._leave(step, answers)
            elif step.times > 1:
                self._race(step, answers)
            else:
                with RawClient(self) as client:  # type: ignore[arg-type]  # all it takes is an address
                    client.send(step.request.bytes())
                    answers[step.request.number] = _answer(client)
        return answers

    def _race(self, step: Step, answers: dict[int, Answer]) -> None:
        """One arrives, then the others; the gate opens when all are decided about."""
        requests = [replace(step.request, number=step.request.number + n) for n in range(step.times)]
        with ExitStack() as stack:
            clients = [stack.enter_context(RawClient(self)) for _ in requests]  # type: ignore[arg-type]  # as above
            until_decided = self._decided()
            self._begin(clients[0], requests[0], until_decided)
            for client, request in zip(clients[1:], requests[1:], strict=True):
                client.send(request.bytes())
            if self._executes_all:
                for request in requests[1:]:
                    self._arrived(request)
                until_decided(len(requests))
            else:
                for client, request in zip(clients[1:], requests[1:], strict=True):
                    answers[request.number] = _answer(client)
            self._service.opened(step.request.key or "")
            for client, request in zip(clients, requests, strict=True):
                if request.number not in answers:
                    answers[request.number] = _answer(client)

    def _leave(self, step: Step, answers: dict[int, Answer]) -> None:
        """A client leaves, retries while its request is being executed, and retries once more when that is done."""
        first, second, third = (replace(step.request, number=step.request.number + n) for n in range(3))
        with RawClient(self) as client, RawClient(self) as retry:  # type: ignore[arg-type]  # as above
            until_decided, until_recorded = self._decided(), self._recorded()
            self._begin(client, first, until_decided)
            client.leave()
            retry.send(second.bytes())
            if self._executes_all:
                self._arrived(second)
                until_decided(2)
            else:
                answers[second.number] = _answer(retry)
            self._service.opened(step.request.key or "")
            if self._executes_all:
                answers[second.number] = _answer(retry)
            until_recorded(1)
        with RawClient(self) as client:  # type: ignore[arg-type]  # as above
            client.send(third.bytes())
            answers[third.number] = _answer(client)

    def _begin(self, client: RawClient, request: Sent, until_decided: Callable[[int], None]) -> None:
        client.send(request.bytes())
        self._arrived(request)
        until_decided(1)

    def _arrived(self, request: Sent) -> None:
        wait_until(lambda: self._service.arrivals[str(request.number)], f"request {request.number} arrives")


def _answer(client: RawClient) -> Answer:
    answer = client.answer()
    fields = [(name, value) for name, value in answer.fields if name not in OF_ONE_CONNECTION]
    return answer.status, fields, answer.body

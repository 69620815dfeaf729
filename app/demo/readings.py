"""The state that the page shows: the gateway's counters, a record by the operators' API, the payments service's own books."""

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote

import orjson

from oncegate.app.demo import story
from oncegate.app.demo.actions import PaymentRequest
from oncegate.app.demo.exchange import Answer, NoAnswer, exchange
from oncegate.app.demo.stack import Stack
from oncegate.app.demo.story import Event, Row
from oncegate.app.operators.pages.client import PREFIX

MOST_EVENTS = 60
AVAILABLE_WITHIN = 30.0
_OWN_KEY = re.compile(r"demo-(\d{1,9})")
_COUNTED = re.compile(r"^(?:oncegate_requests_total\{.*\}|oncegate_attempts_in_flight) ([\d.e+]+)$", re.M)
_NO_BOOKS: dict[str, Any] = {"arrived": 0, "executed": 0, "entries": []}


@dataclass(slots=True)
class Readings:
    """The state that was read last. ``sent`` is what the gateways have counted, those included that were killed since.

    ``last`` is the newest key's first request, ``record`` that key's record, ``events`` its story; ``changed`` is called after
    each change of what is shown.
    """

    stack: Stack
    changed: Callable[[], None]
    sent: int = 0
    books: dict[str, Any] = field(default_factory=lambda: dict(_NO_BOOKS))
    record: Row | None = None
    last: PaymentRequest | None = None
    events: list[Event] = field(default_factory=list)
    _ended: int = 0
    """The count of gateways that have ended."""
    _seen: int = 0
    _keys: set[str] = field(default_factory=set)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def fresh_key(self) -> str:
        """A key that nobody has sent."""
        numbers = [int(found[1]) for found in map(_OWN_KEY.fullmatch, self._keys) if found]
        return f"demo-{max(numbers, default=0) + 1}"

    @property
    def entries(self) -> Sequence[Row]:
        """The service's entries under the last key."""
        return [entry for entry in self.books["entries"] if self.last is not None and entry["key"] == self.last.key]

    def follow(self, request: PaymentRequest) -> None:
        """The page's own client sends ``request``."""
        if request.key not in self._keys:
            self._keys.add(request.key)
            self.last, self.record, self.events = request, None, []
        self.changed()

    def note(self, source: str, text: str) -> None:
        """Add to the story what the page does not read."""
        at = datetime.now().astimezone().strftime("%H:%M:%S.%f")[:-4]
        self.events = [*self.events, Event(at, source, text)][-MOST_EVENTS:]
        self.changed()

    def gateway_ended(self) -> None:
        """Keep what the gateway has counted: the next one begins at 0."""
        self._ended = self.sent

    async def read(self) -> None:
        """Read all of it anew. What can't be read stays as it was."""
        if not self.stack.gateway.address:  # nothing is up yet
            return
        async with self._lock:
            await asyncio.gather(self._read_books(), self._read_counters())
            await self._read_record()

    async def until_available(self) -> None:
        """Returns once the gateway says that it reaches its records, or has not for `AVAILABLE_WITHIN` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(AVAILABLE_WITHIN):
                while True:
                    answer = await _fetch("GET", f"{self._operations}/readyz")
                    if answer is not None and orjson.loads(answer.body).get("cache") == "available":
                        return
                    await asyncio.sleep(0.05)

    async def _read_books(self) -> None:
        answer = await _fetch("GET", f"{self.stack.payments.address}/books")
        if answer is None:
            return
        before, books = self.entries, orjson.loads(answer.body)
        for entry in books["entries"]:
            if entry["number"] > self._seen:
                self._seen = entry["number"]
                if entry["key"] and entry["key"] not in self._keys:  # somebody else's: curl's
                    self.follow(PaymentRequest(entry["path"], entry["key"], entry["body"]))
                    before = []
        if books != self.books:
            self.books = books
            for text in story.of_entries(before, self.entries):
                self.note("service", text)
            self.changed()

    async def _read_counters(self) -> None:
        ended = self._ended
        answer = await _fetch("GET", f"{self._operations}/metrics")
        if answer is None or answer.status != 200 or ended != self._ended:
            return
        counted = ended + sum(int(float(each)) for each in _COUNTED.findall(answer.body.decode()))
        if counted != self.sent:
            self.sent = counted
            self.changed()

    async def _read_record(self) -> None:
        last = self.last
        if last is None:
            return
        found = await self._operate("POST", "records/find", {"key": last.key})
        if found is None:
            return
        ids = found["ids"]
        record = await self._operate("GET", f"records/{quote(ids[0], safe=':')}") if ids else None
        if (ids and record is None) or self.last is not last:
            return
        for text in story.of_record(self.record, record):
            self.note("record", text)
        self.record = record

    @property
    def _operations(self) -> str:
        return f"{self.stack.gateway.address}{PREFIX}"

    async def _operate(self, method: str, path: str, members: dict[str, Any] | None = None) -> dict[str, Any] | None:
        headers = {"Authorization": f"Bearer {self.stack.token}", "Content-Type": "application/json"}
        body = None if members is None else orjson.dumps(members)
        answer = await _fetch(method, f"{self._operations}/{path}", headers, body)
        if answer is None or answer.status != 200:
            return None
        document: dict[str, Any] = orjson.loads(answer.body)
        return document


async def _fetch(
    method: str, url: str, headers: dict[str, str] | None = None, body: bytes | None = None
) -> Answer | None:
    try:
        return await asyncio.to_thread(exchange, method, url, headers or {}, body)
    except NoAnswer:
        return None

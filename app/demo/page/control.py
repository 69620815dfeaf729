"""The page's server: the page, its events, its buttons and faults, for this machine and for its own origin alone.

A page of another site can send requests here, too, or have its own name lead to 127.0.0.1. So each request has to name this
server by its address, and one that comes from a page has to come from this one.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any

import orjson

from oncegate.app.demo.actions import BY_NAME, FAULTS, REDIS_STARTS
from oncegate.app.demo.page.document import DemoPage
from oncegate.app.demo.page.html import Html
from oncegate.app.demo.paying import is_possible
from oncegate.middleware.http.asgi import respond

MOST_FOLLOWERS = 20
"""Pages that are followed at once."""
REFRESH_SECONDS = 0.15
"""Between two looks at what the gateway and the service show, while somebody follows them."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_SAFE = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"same-origin"),  # no-referrer would have the forms' Origin be null
    (b"cache-control", b"no-store"),
)
_STATIC = {"/demo.js": "text/javascript; charset=utf-8", "/demo.css": "text/css; charset=utf-8"}
_TEXT = "text/plain; charset=utf-8"


class Control:
    """The page's server, as an ASGI app."""

    def __init__(self, page: DemoPage) -> None:
        self._page = page
        self._closed = False
        self._change = asyncio.Event()
        self._followers = 0
        self._reading: asyncio.Task[None] | None = None
        port = page.url.rpartition(":")[2]
        self._hosts = frozenset(f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost"))

    def changed(self) -> None:
        """Have those who follow the page get what has changed on it."""
        self._change.set()
        self._change = asyncio.Event()

    def close(self) -> None:
        """Let go of those who follow the page."""
        self._closed = True
        self.changed()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI 3."""
        refusal = self._refusal(scope["headers"])
        if refusal:
            return await _answer(send, 403, refusal)
        method, path = scope["method"], scope["path"]
        if method == "POST":
            return await self._post(path, send)
        if method not in ("GET", "HEAD"):
            return await _answer(send, 405, "GET, HEAD or POST")
        if path == "/events" and method == "GET":
            return await self._follow(receive, send)
        if path == "/":
            await self._page.readings.read()
            return await _answer(send, 200, self._page.whole(), "text/html; charset=utf-8")
        if path in _STATIC:
            text = (files("oncegate.app.demo.page") / "static" / path[1:]).read_text("utf-8")
            return await _answer(send, 200, text, _STATIC[path])
        return await _answer(send, 404, "no such page: the demo is at /")

    def _refusal(self, headers: Sequence[tuple[bytes, bytes]]) -> str:
        """Why a request with these headers is none of this page's; empty where it is."""
        fields = dict(headers)
        if [value for name, value in headers if name == b"host"] != [fields.get(b"host")] or fields[
            b"host"
        ] not in self._hosts:
            return f"this is {self._page.url}: another name of it is refused"
        origins = {b"http://" + host for host in self._hosts}
        if fields.get(b"origin", next(iter(origins))) not in origins:
            return "pages of other origins are refused"
        if fields.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none"):
            return "requests from pages of other sites are refused"
        return ""

    async def _post(self, path: str, send: Any) -> None:
        _, kind, name = path.split("/") if path.count("/") == 2 else ("", "", "")
        if kind == "actions" and name in BY_NAME:
            await self._act(name, send)
        elif kind == "faults" and name in FAULTS and FAULTS[name].process in self._page.faults.processes:
            await self._page.faults.arm(name)
            when = f"with the next payment, once that has {FAULTS[name].at}" if FAULTS[name].at else "now"
            await _answer(send, 200, f"the {FAULTS[name].process} is killed {when}")
        elif kind == "faults" and name == REDIS_STARTS:
            await self._page.faults.over()
            await self._page.readings.until_available()
            await _answer(send, 200, "all processes are up")
        else:
            await _answer(send, 404, f"no such button or fault; faults: {', '.join(FAULTS)}, {REDIS_STARTS}")

    async def _act(self, name: str, send: Any) -> None:
        action = BY_NAME[name]
        if not is_possible(action, self._page.faults):
            return await _answer(send, 409, f"{action.label}: there is no Redis here")
        if not await self._page.paying.perform(action):
            return await _answer(send, 409, "another one is under way: wait for its end")
        return await _answer(send, 303, "done", extra=((b"location", b"/"),))

    async def _follow(self, receive: Any, send: Any) -> None:
        """Server-sent events: the regions that have changed, at first all."""
        if self._followers >= MOST_FOLLOWERS:
            return await _answer(send, 503, "too many pages are open")
        gone = asyncio.create_task(_gone(receive))
        self._followers += 1
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        start = {"type": "http.response.start", "status": 200}
        try:
            await send({**start, "headers": [*_SAFE, (b"content-type", b"text/event-stream")]})
            await self._send_changes(send, gone)
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            self._followers -= 1
            if not self._followers and self._reading is not None:
                self._reading.cancel()
                self._reading = None
        return None

    async def _send_changes(self, send: Any, gone: "asyncio.Task[None]") -> None:
        last: dict[str, Html] = {}
        while not (self._closed or gone.done()):
            change, now = self._change, self._page.regions()
            changed = {name: str(region) for name, region in now.items() if last.get(name) != region}
            if changed:
                last = now
                body = b"data: " + orjson.dumps(changed) + b"\n\n"
                await send({"type": "http.response.body", "body": body, "more_body": True})
            waiting = asyncio.create_task(change.wait())
            await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()

    async def _read(self) -> None:
        while True:
            await self._page.readings.read()
            await asyncio.sleep(REFRESH_SECONDS)


async def _gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(
    send: Any, status: int, text: str, kind: str = _TEXT, extra: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    content = text.encode() + (b"\n" if kind == _TEXT else b"")
    headers = [*_SAFE, *extra, (b"content-type", kind.encode()), (b"content-length", b"%d" % len(content))]
    with suppress(OSError):
        await respond(send, status, headers, content)

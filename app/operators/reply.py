"""Whole HTTP answers for the endpoints under the prefix: JSON objects and problems."""

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from oncegate.middleware.http.asgi import Scope, Send
from oncegate.middleware.outcome.problems import FAULT, INVALID_REQUEST, error_member
from oncegate.middleware.outcome.responses import date

JSON = "application/json"
PROBLEM = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer, never to be stored on the way (``no-store``)."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()

    async def send(self, scope: Scope, send: Send) -> None:
        """Send it as the answer to the request of ``scope``, without the body where the method is HEAD."""
        start = [
            (b"content-type", self.content_type.encode()),
            (b"content-length", b"%d" % len(self.body)),
            (b"cache-control", b"no-store"),
            date(),
            *self.headers,
        ]
        await send({"type": "http.response.start", "status": self.status, "headers": start})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else self.body})


def told(members: Mapping[str, object], status: int = 200) -> Reply:
    """A JSON object."""
    return Reply(status, orjson.dumps(members))


def problem(status: int, title: str, detail: str = "", *headers: tuple[bytes, bytes]) -> Reply:
    """A problem (RFC 9457) of an operation's own: these have no page in the docs, so no type."""
    error = error_member(INVALID_REQUEST if status < 500 else FAULT, title.lower().replace(" ", "-"), detail or title)
    members = {"title": title, "status": status, **({"detail": detail} if detail else {}), "error": error}
    return Reply(status, orjson.dumps(members), PROBLEM, headers)


NOT_FOUND = problem(404, "Not Found", "No such operation.")


def method_not_allowed(allowed: str) -> Reply:
    """405, with what is allowed."""
    return problem(405, "Method Not Allowed", "", (b"allow", allowed.encode()))

"""Whole HTTP answers for the endpoints under the prefix: JSON documents and problems; and how these are described."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import Response

from oncegate.middleware.http.asgi import Receive, Scope, Send
from oncegate.middleware.outcome.problem_kinds import FAULT, INVALID_REQUEST
from oncegate.middleware.outcome.problems import error_member
from oncegate.middleware.rules.headers.request_id import request_id

PROBLEM = "application/problem+json"
REALM = 'Bearer realm="oncegate operators"'


def document(members: Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON object."""
    return Response(orjson.dumps(members), status, headers, "application/json")


def problem(
    status: int, detail: str = "", title: str = "", headers: Mapping[str, str] | None = None, **extra: Any
) -> Response:
    """A problem (RFC 9457) of an operation's own: these have no page in the docs, so no type. ``extra`` are more members."""
    title = title or _TITLES.get(status) or HTTPStatus(status).phrase
    error = error_member(INVALID_REQUEST if status < 500 else FAULT, title.lower().replace(" ", "-"), detail or title)
    members = {"title": title, "status": status, **({"detail": detail} if detail else {}), "error": error}
    return ProblemReply(members | extra, status, headers)


class ProblemReply(Response):
    """A problem with these ``members``, and with the id of the request that it turns out to answer."""

    def __init__(self, members: dict[str, Any], status: int, headers: Mapping[str, str] | None) -> None:
        super().__init__(orjson.dumps(members), status, headers, PROBLEM)
        self._members = members

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI, within the app of `oncegate.app.operators.pages.api.create_app`."""
        followed = request_id(scope, scope["app"].state.unshown)
        self.body = orjson.dumps(self._members | {"request_id": followed})
        self.headers["content-length"] = str(len(self.body))
        self.headers["x-request-id"] = followed
        await super().__call__(scope, receive, send)


def unavailable(detail: str, title: str = "") -> Response:
    """The answer where the cache can't be reached, or what ``title`` says."""
    return problem(503, detail, title, headers={"retry-after": "1"})


_TITLES = {413: "Content Too Large", 503: "Cache Unavailable"}
"""Titles of statuses that Python calls otherwise."""

Answers = dict[int | str, dict[str, Any]]

_FOLLOWED = {"X-Request-Id": {"$ref": "#/components/headers/XRequestId"}}
_CONTENT = {PROBLEM: {"schema": {"$ref": "#/components/schemas/OperationProblem"}}}


def answer(status: int, description: str, headers: dict[str, Any] | None = None) -> Answers:
    """The problem of an operation as openapi/oncegate.yaml has it, for FastAPI's ``responses``."""
    return {status: {"description": description, "content": _CONTENT, "headers": _FOLLOWED | (headers or {})}}


WRONG = answer(400, "Something that was given is wrong.")
_CHALLENGE = {"WWW-Authenticate": {"required": True, "schema": {"const": REALM}}}
NO_TOKEN = answer(401, "Without the operators' token.", _CHALLENGE)
READS_ONLY = answer(403, "The token is for reading.")
ABSENT = answer(404, "It was never made, or its time is over.")
SLOW = answer(408, "The body did not arrive in time.")
LARGE = answer(413, "The body is larger than 8 MiB.")
NO_STREAM = answer(404, "No route of this gateway is asynchronous.")
DAMAGED = answer(500, "It is damaged, or of a newer version.")
NO_CACHE = answer(503, "The cache can't be reached.")
NO_DATABASE = answer(503, "The database can't be reached, does not answer in time, or refuses.")

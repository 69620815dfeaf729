"""Whole HTTP answers for the endpoints under the prefix: JSON documents and problems; and how these are described."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import Response

from oncegate.middleware.outcome.problems import FAULT, INVALID_REQUEST, error_member

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
    return Response(orjson.dumps(members | extra), status, headers, PROBLEM)


def unavailable(detail: str) -> Response:
    """The answer where the cache can't be reached."""
    return problem(503, detail, headers={"retry-after": "1"})


_TITLES = {413: "Content Too Large", 503: "Cache Unavailable"}
"""Titles of statuses that Python calls otherwise."""

Answers = dict[int | str, dict[str, Any]]

_CONTENT = {PROBLEM: {"schema": {"$ref": "#/components/schemas/OperationProblem"}}}


def answer(status: int, description: str, headers: dict[str, Any] | None = None) -> Answers:
    """The problem of an operation as openapi/oncegate.yaml has it, for FastAPI's ``responses``."""
    return {status: {"description": description, "content": _CONTENT} | ({"headers": headers} if headers else {})}


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

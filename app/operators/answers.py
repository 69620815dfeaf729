"""How openapi/oncegate.yaml describes the problems that operations are answered with, for FastAPI's ``responses``."""

from typing import Any

from oncegate.app.operators.reply import PROBLEM

Answers = dict[int | str, dict[str, Any]]

REALM = 'Bearer realm="oncegate records"'
_CONTENT = {PROBLEM: {"schema": {"$ref": "#/components/schemas/OperationProblem"}}}


def answer(status: int, description: str, headers: dict[str, Any] | None = None) -> Answers:
    """The problem of an operation, by its status."""
    return {status: {"description": description, "content": _CONTENT} | ({"headers": headers} if headers else {})}


WRONG = answer(400, "Something that was given is wrong.")
NO_TOKEN = answer(
    401,
    "Without the operators' token.",
    {"WWW-Authenticate": {"required": True, "schema": {"const": REALM}}},
)
ABSENT = answer(404, "It was never made, or its time is over.")
SLOW = answer(408, "The body did not arrive in time.")
LARGE = answer(413, "The body is larger than 8 MiB.")
DAMAGED = answer(500, "It is damaged, or of a newer version.")
NO_CACHE = answer(503, "The cache can't be reached.")

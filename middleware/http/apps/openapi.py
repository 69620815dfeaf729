"""Adds to an app's OpenAPI description what enforcement adds to the app: the key's header and the problems, by operation.

A dict in, a new dict out: the given one is not changed. An operation's rules come from the same `Policies` as for requests,
by the path as the description writes it, ``/payments/{id}``: a route for ``/payments/*`` matches it, one for
``/payments/42`` alone does not.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from oncegate.middleware.outcome.problem_kinds import KINDS
from oncegate.middleware.rules.headers.added_headers import header_object
from oncegate.middleware.rules.keys.key_form import KeyForm
from oncegate.middleware.rules.policies import Policies
from oncegate.middleware.rules.policy import AN_UNKNOWN_IS_RETRIED, Policy
from oncegate.middleware.rules.settings import IdempotencySettings, claims_of

Description = dict[str, Any]

PROBLEM_TYPE = "application/problem+json"
SCHEMA_NAME = "IdempotencyProblem"
MOST_VALUES = 2_000_000
"""The most values of a description: far more than anybody writes."""

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_REPLAYED = {name: header_object(name) for name in ("Idempotent-Replayed", "Cache-Status")}
_EXAMPLE = "8e03978e-40d5-43dd-bc93-6894a57f9324"
_NOT_HERE = {"upgrade-unsupported"}
_OF_NAMED_CALLERS = {"caller-missing", "caller-failed"}
_OF_VERSIONS = {
    "aggregate-invalid",
    "version-invalid",
    "version-conflict",
    "precondition-failed",
    "precondition-required",
}
_OF_TOKENS = {"caller-invalid", "caller-unverifiable"}


class NotOpenAPI(ValueError):
    """The document is no OpenAPI 3 description. The text is one line."""


def problem_schema(slugs: list[str]) -> Description:
    """The JSON Schema of a problem whose ``code`` is one of ``slugs``."""
    return {
        "type": "object",
        "description": "A problem (RFC 9457)",
        "required": ["type", "title", "status", "detail", "code", "retryable", "error", "request_id"],
        "properties": {
            "type": {"type": "string", "format": "uri-reference", "description": "Where this problem is explained"},
            "title": {"type": "string"},
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "detail": {"type": "string"},
            "code": {"type": "string", "enum": slugs},
            "retryable": {"type": "boolean", "description": "May the same request be sent again unchanged?"},
            "error": error_schema(slugs),
            "idempotency_key": {"type": "string"},
            "record": {"type": "string", "description": "An id that the logs carry too"},
            "original_trace_id": {
                "type": "string",
                "pattern": "^[0-9a-f]{32}$",
                "description": "The trace of the execution that the answer is about, where requests are traced.",
            },
            "request_id": {
                "type": "string",
                "description": "The id of this request, as in X-Request-Id and in the logs",
            },
            "original_result": {"type": "object", "description": "With code duplicate: the result that is there"},
            "expected": {"description": "With another version than expected: the one that was expected"},
            "current": {"type": "integer", "description": "With the same: the one that there is"},
        },
    }


def error_schema(slugs: list[str]) -> Description:
    """The JSON Schema of the member by which some SDKs distinguish a problem from a success."""
    return {
        "type": "object",
        "description": "The same, for SDKs that look for it",
        "required": ["type", "code", "message"],
        "properties": {
            "type": {"type": "string", "enum": sorted({KINDS[slug].error_type for slug in slugs})},
            "code": {"type": "string", "enum": slugs},
            "message": {"type": "string"},
        },
    }


def slugs_of(settings: IdempotencySettings, *, named: bool = False, numbered: bool = False) -> list[str]:
    """The problems that a request under ``settings`` may get, in the order of `KINDS`. ``named``: an app names its callers.
    ``numbered``: its route numbers commands.
    """
    never = set(_NOT_HERE) if numbered else _NOT_HERE | _OF_VERSIONS
    if settings.on_missing_key != "reject":
        never.add("key-missing")
    if not settings.require_scope and settings.scope is not None:  # else a cookie alone is refused
        never.add("caller-missing")
    if named:
        never -= _OF_NAMED_CALLERS
    else:
        never.add("caller-failed")
    if not claims_of(settings):
        never |= _OF_TOKENS
    if AN_UNKNOWN_IS_RETRIED[settings.on_unknown]:
        never.add("outcome-unknown")
    return [slug for slug in KINDS if slug not in never]


def accepted() -> Description:
    """The response with which a command is accepted to be processed later."""
    text = {"type": "string"}
    return {
        "description": "The command is accepted, to be processed later",
        "headers": {
            "Location": {
                "description": "What became of it is told there",
                "schema": {**text, "format": "uri-reference"},
            },
            "Preference-Applied": header_object("Preference-Applied"),
            **_REPLAYED,
        },
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["status", "position", "command"],
                    "properties": {
                        "status": {**text, "enum": ["accepted"]},
                        "position": {**text, "description": "In the command stream"},
                        "command": {**text, "description": "Its id, which Location ends with"},
                        "sequence": {"type": "integer", "description": "Its number, where its route numbers commands"},
                    },
                }
            }
        },
    }


def describe(
    description: Mapping[str, Any], policies: Policies, *, prefix: str = "", named: bool = False
) -> Description:
    """``description`` with what enforcement by ``policies`` adds to it. Doing it twice adds nothing.

    ``prefix`` is what stands before the description's paths where requests meet the rules: a mount, a server's path.
    ``named``: callers are named by the app. Raises `NotOpenAPI`.
    """
    found: object = description  # out of a file it may be anything
    version = found.get("openapi") if isinstance(found, Mapping) else None
    if not isinstance(version, str) or not version.startswith("3."):
        raise NotOpenAPI("not an OpenAPI 3 description: it has no member openapi: 3.x")
    try:
        described: Description = _copied(description)
    except RecursionError:
        raise NotOpenAPI("not an OpenAPI description: it nests too deep, or holds itself") from None
    used: set[str] = set()
    for item, operation, policy in _enforced(described, policies, prefix):
        used.update(_describe_operation(described, item, operation, policy, named=named))
    if used:
        schemas = described.setdefault("components", {}).setdefault("schemas", {})
        before = schemas.get(SCHEMA_NAME, {}).get("properties", {}).get("code", {}).get("enum", [])
        schemas[SCHEMA_NAME] = problem_schema([slug for slug in KINDS if slug in used or slug in before])
    return described


def _copied(value: Any) -> Any:
    """A copy in which nothing is there twice: YAML's anchors make one object of several, as would ``deepcopy``."""
    left = MOST_VALUES

    def copied(value: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:  # a page of anchors that refer to each other stands for more than any memory holds
            raise NotOpenAPI(f"it holds more than {MOST_VALUES} values")
        if isinstance(value, Mapping):
            return {key: copied(item) for key, item in value.items()}
        return [copied(item) for item in value] if isinstance(value, list) else value

    return copied(value)


def _enforced(
    described: Description, policies: Policies, prefix: str
) -> Iterator[tuple[Description, Description, Policy]]:
    paths = described.get("paths") or {}
    if not isinstance(paths, dict):
        raise NotOpenAPI("not an OpenAPI description: paths is not an object")
    for path, item in paths.items():
        for method in METHODS:
            operation = item.get(method) if isinstance(item, dict) else None
            policy = policies.match(method.upper(), prefix + str(path)) if isinstance(operation, dict) else None
            if policy is not None and isinstance(operation, dict):
                yield item, operation, policy


def _describe_operation(
    described: Description, item: Description, operation: Description, policy: Policy, *, named: bool
) -> list[str]:
    settings = policy.settings
    _add_parameter(described, item, operation, settings)
    responses = operation.setdefault("responses", {})
    for status, response in list(responses.items()):
        if str(status).startswith("2"):
            own = responses[status] = _resolved(described, response)
            own["headers"] = {**_REPLAYED, **(own.get("headers") or {})}
    if policy.submission is not None and 202 not in responses:
        responses.setdefault("202", accepted())
    by_status: dict[int, list[str]] = {}
    numbered = policy.submission is not None and policy.submission.aggregates is not None
    slugs = slugs_of(settings, named=named, numbered=numbered)
    for slug in slugs:
        by_status.setdefault(KINDS[slug].status, []).append(slug)
    for status, those in by_status.items():
        key: Any = status if status in responses else str(status)  # YAML reads an unquoted 409 as a number
        responses[key] = _with_problem(_resolved(described, responses.get(key) or {}), those)
    return slugs


def _add_parameter(described: Description, item: Description, operation: Description, settings: Any) -> None:
    parameters = list(operation.get("parameters") or ())
    for index, listed in enumerate([*parameters, *(item.get("parameters") or ())]):
        own = _resolved(described, listed)
        if own.get("in") == "header" and str(own.get("name")).lower() == settings.header.lower():
            if settings.on_missing_key == "reject" and not own.get("required"):
                # In place of the operation's own; behind them, over the one of all the path's methods.
                parameters[index : index + 1] = [{**own, "required": True}]
                operation["parameters"] = parameters
            return
    if settings.on_missing_key == "reject":
        without = "Required."
    elif settings.on_missing_key == "generate":
        without = "Without it, one is made and returned."
    else:
        without = "Without it, the request is executed each time that it is sent."
    form = KeyForm.of(settings.key_pattern)
    if form is not None:
        without = f"The key is {form.words}. {without}"
    parameter = {
        "name": settings.header,
        "in": "header",
        "required": settings.on_missing_key == "reject",
        "description": (
            "A fresh value, such as a UUID, for each new request, and the same one for its retries: a request that was "
            f"executed already is answered with its first response, for {settings.ttl:g} seconds. {without}"
        ),
        "schema": {"type": "string", "minLength": 1, "maxLength": 512},
    }
    if form is None or form.matches(_EXAMPLE):
        parameter["example"] = f'"{_EXAMPLE}"'
    operation["parameters"] = [*parameters, parameter]


def _resolved(described: Description, value: Any) -> Description:
    """A copy of ``value``, or of what it refers to within the description; a reference that leads elsewhere stays one."""
    for _ in range(16):  # references may lead in a circle
        reference = value.get("$ref") if isinstance(value, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        target: Any = described
        for part in reference[2:].split("/"):
            target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
        if target is None:
            break
        value = target
    return dict(_copied(value)) if isinstance(value, dict) else {}


def _with_problem(response: Description, slugs: list[str]) -> Description:
    if "$ref" in response:  # into another document: it can't be added to
        return response
    listed = ", ".join(f"`{slug}` ({KINDS[slug].title})" for slug in slugs)
    before = response.get("description") or ""
    if listed not in before:
        response["description"] = f"{before}\n\nOr a problem: {listed}".strip() if before else f"A problem: {listed}"
    content = response.setdefault("content", {})
    ours = {"$ref": f"#/components/schemas/{SCHEMA_NAME}"}
    theirs = (content.get(PROBLEM_TYPE) or {}).get("schema")
    if theirs is None:
        content[PROBLEM_TYPE] = {"schema": ours}
    elif theirs != ours and ours not in theirs.get("anyOf", ()):
        content[PROBLEM_TYPE] = {**content[PROBLEM_TYPE], "schema": {"anyOf": [theirs, ours]}}
    if "caller-missing" in slugs or "caller-invalid" in slugs:
        response["headers"] = {"WWW-Authenticate": header_object("WWW-Authenticate"), **(response.get("headers") or {})}
    if any(KINDS[slug].retry_after for slug in slugs):
        response["headers"] = {"Retry-After": header_object("Retry-After"), **(response.get("headers") or {})}
    return response

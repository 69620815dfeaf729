"""Completes FastAPI's description of the operations by what the gateway answers in an upstream's place, and shows it as a page.

tests/app/cli/test_openapi_description.py holds it against a running gateway.
"""

import json
from html import escape
from typing import Any

from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema

from oncegate import __version__
from oncegate.app.operators.pages.described.command import Accepted
from oncegate.app.operators.pages.described.problem import OperationProblem, Problem
from oncegate.app.operators.pages.operations import CHOSEN, FOR_OPERATORS
from oncegate.middleware.outcome.problem_kinds import KINDS
from oncegate.middleware.rules.headers.added_headers import ADDED_HEADERS, header_object

Description = dict[str, Any]

_REF = "#/components/"
_INFO = {
    "title": "oncegate",
    "version": __version__,
    "license": {"name": "MIT", "identifier": "MIT"},
    "description": (
        "An HTTP gateway that enforces idempotency keys. Every path but those below its prefix is the upstream's; requests with "
        "a key may be answered with one of the problems in components/responses instead. Below the prefix, HEAD is answered "
        "wherever GET is; what is not there is 404, another method 405, and both are an OperationProblem."
    ),
}
_GATEWAY = {"default": "http://127.0.0.1:8080"}
_PREFIX = {"default": "/_oncegate", "description": "The setting prefix"}
_SERVERS = [{"url": "{gateway}{prefix}", "variables": {"gateway": _GATEWAY, "prefix": _PREFIX}}]
_TAGS = [
    {"name": "health", "description": "For probes"},
    {"name": "callers", "description": "For those who send keys"},
    {"name": "operators", "description": "With ops_port: on that port alone"},
]
_OPERATOR = {
    "type": "http",
    "scheme": "bearer",
    "description": (
        "An operator's token (admin_tokens, or ONCEGATE_ADMIN_TOKEN); without any, records/, dead-letters/, inbox/ and its like, "
        "and reload/ do not exist. metrics, policy and docs need none where the setting public names them, nor on ops_port"
    ),
}
_ON_ALL = {
    "Cache-Control": {"required": True, "schema": {"const": "no-store"}},
    "Date": {"required": True, "schema": {"type": "string"}},
}


_REQUIRED = {"required": True}


def _on_request(name: str, description: str, schema: Description) -> Description:
    return {"name": name, "in": "header", "description": description, "schema": schema}


_ON_PROBLEMS = ("Link", "Retry-After", "WWW-Authenticate")
"""Headers of problems alone: on each that refers to one it is there."""
_HEADERS = {
    each.name.replace("-", ""): header_object(each.name) | (_REQUIRED if each.name in _ON_PROBLEMS else {})
    for each in ADDED_HEADERS
}
_PARAMETERS = {
    "IdempotencyKey": _on_request(
        "Idempotency-Key",
        'A fresh value for each new request, the same for its retries: an RFC 9651 String ("abc") or a bare token (abc).',
        {"type": "string", "minLength": 1, "maxLength": 512},
    ),
    "RaiseOnDuplicate": _on_request(
        "Idempotency-Raise-On-Duplicate",
        "Answer a duplicate with the problem duplicate instead of the plain replay.",
        {"enum": ["?1", "1", "true"]},
    ),
    "Prefer": _on_request(
        "Prefer",
        "wait=N (RFC 7240): wait up to N seconds for a request in flight, instead of a 409 at once. respond-async, where the "
        "route allows it: accept the command now, process it later.",
        {"type": "string"},
    ),
    "ExpectedVersion": _on_request(
        "Expected-Version",
        'On a route with aggregate: accept the command only where the aggregate has this version. If-Match: "4" and '
        "If-None-Match: * say the same in HTTP's words.",
        {"type": "integer", "minimum": 0},
    ),
    "RequestId": _on_request(
        "X-Request-Id",
        "The id by which logs name the request. What is not well-formed, or a key or a credential, too, is no id.",
        {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
    ),
}
_OF_APPS = {"caller-failed"}
"""Problems of apps that name their callers themselves."""


def operation_id(route: APIRoute) -> str:
    """``showRecord`` for a function ``show_record``."""
    first, *others = route.name.split("_")
    return first + "".join(map(str.capitalize, others))


def complete(generated: Description) -> Description:
    """``generated``, with what FastAPI can't know, and without what it adds for itself."""
    paths, components = generated["paths"], generated["components"]
    for path, item in paths.items():
        for operation in item.values():
            _complete_operation(operation, path.split("/")[1])
    more = models_json_schema(
        [(model, "serialization") for model in (Accepted, OperationProblem, Problem)],
        ref_template=_REF + "schemas/{model}",
    )[1]["$defs"]
    schemas = {_schema_name(name): schema for name, schema in (components["schemas"] | more).items()}
    for own in ("HTTPValidationError", "ValidationError"):
        del schemas[own]
    whole: Description = {
        "openapi": generated["openapi"],
        "info": _INFO,
        "servers": _SERVERS,
        "tags": _TAGS,
        "paths": paths,
        "components": {
            "securitySchemes": {"operator": _OPERATOR},
            "schemas": dict(sorted(schemas.items())),
            "headers": _HEADERS,
            "parameters": _PARAMETERS,
            "responses": {slug: _problem(slug) for slug in KINDS if slug not in _OF_APPS},
        },
    }
    _tidy(whole["paths"])
    _tidy(whole["components"]["schemas"])
    return whole


def _complete_operation(operation: Description, name: str) -> None:
    summary, _, rest = operation.pop("description").partition("\n\n")
    operation["summary"] = summary
    if rest:
        operation["description"] = " ".join(rest.split())
    if name in FOR_OPERATORS:
        operation["security"] = [{"operator": []}]
    elif name in CHOSEN:
        operation["security"] = [{"operator": []}, {}]
    responses = operation["responses"]
    responses.pop("422", None)  # FastAPI's own: what is wrong is 400 here
    for response in responses.values():
        response["headers"] = {**_ON_ALL, **response.get("headers", {})}
    operation["responses"] = dict(sorted(responses.items()))


def _problem(slug: str) -> Description:
    kind = KINDS[slug]
    headers: Description = (
        {"WWW-Authenticate": {"$ref": _REF + "headers/WWWAuthenticate"}} if kind.status == 401 else {}
    )
    headers["Link"] = {"$ref": _REF + "headers/Link"}
    headers["X-Request-Id"] = {"$ref": _REF + "headers/XRequestId"}
    if kind.retry_after:
        headers["Retry-After"] = {"$ref": _REF + "headers/RetryAfter"}
    members = {
        "code": {"const": slug},
        "status": {"const": kind.status},
        "title": {"const": kind.title},
        "error": {"properties": {"type": {"const": kind.error_type}, "code": {"const": slug}}},
        "retryable": {"type": "boolean"} if kind.unless else {"const": kind.retryable},
    }
    schema = {"allOf": [{"$ref": _REF + "schemas/Problem"}, {"properties": members}]}
    return {
        "description": kind.meaning,
        "headers": headers,
        "content": {"application/problem+json": {"schema": schema}},
    }


def _schema_name(name: str) -> str:
    """The schema's name of a model, whose class may need a longer one (`oncegate.app.operators.pages.described.document`)."""
    return name.removesuffix("Shape")


def _tidy(value: Any) -> None:
    """Drop titles that repeat a name, and the null of what may be left out; name schemas plainly."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            value["$ref"] = _schema_name(value["$ref"])
        if isinstance(value.get("title"), str):
            del value["title"]
        if value.get("default", ...) is None:
            del value["default"]
        if isinstance(value.get("description"), str):
            value["description"] = " ".join(value["description"].split())
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _tidy(each)


# -- the page ---------------------------------------------------------------------------------------------------------

PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "h2{margin-top:2.5rem;font-size:1.1rem}code,pre{font-family:ui-monospace,monospace;font-size:.9em}"
    "pre{background:#f4f4f4;padding:.7rem;overflow:auto}td,th{text-align:left;padding:.1rem 1rem .1rem 0;vertical-align:top}"
)


_WITH_TOKEN = (
    "",
    "<p>With an operator's token.</p>",
    "<p>With an operator's token; without one where it is public, or on ops_port.</p>",
)
"""By how many ways there are, one of which may be none."""


def as_html(description: Description) -> str:
    """A description as a page for people, which loads nothing from anywhere."""
    info = description["info"]
    sections = [
        _operation(method, path, operation)
        for path, item in description["paths"].items()
        for method, operation in item.items()
    ]
    schemas = "".join(
        f"<h2>{escape(name)}</h2><pre>{escape(json.dumps(schema, indent=2))}</pre>"
        for name, schema in description["components"]["schemas"].items()
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])} {escape(info['version'])}</title>"
        f"<style>{STYLE}</style><h1>{escape(info['title'])}</h1><p>{escape(info['description'])}</p>"
        f"<p>For programs: <a href=openapi.json>openapi.json</a></p>{''.join(sections)}<h1>Schemas</h1>{schemas}</html>"
    )


def _operation(method: str, path: str, operation: Description) -> str:
    given = [(each["name"], each["in"], each.get("description", "")) for each in operation.get("parameters", ())]
    if "requestBody" in operation:
        given.append(("body", "JSON", _schema(operation["requestBody"]["content"]["application/json"]["schema"])))
    answers = [(status, _contents(each), each["description"]) for status, each in operation["responses"].items()]
    token = _WITH_TOKEN[len(operation.get("security", ()))]
    return (
        f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation['summary'])} "
        f"{escape(operation.get('description', ''))}</p>{token}{_table(given)}{_table(answers)}"
    )


def _contents(response: Description) -> str:
    return ", ".join(_schema(content["schema"]) for content in response.get("content", {}).values())


def _schema(schema: Description) -> str:
    """The name of a schema, or its type."""
    return str(schema.get("$ref") or schema.get("type")).rpartition("/")[2]


def _table(rows: list[tuple[str, str, str]]) -> str:
    cells = ("".join(f"<td>{escape(cell)}" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{each}' for each in cells)}</table>" if rows else ""

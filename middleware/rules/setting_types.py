"""The types of settings: times in seconds, sizes in bytes, names, and the words that a setting may be."""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BeforeValidator,
    Field,
    GetPydanticSchema,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from oncegate.cache.fields import FIELD_NAME
from oncegate.middleware.rules.spelling import Spelling


def _in_seconds(value: object) -> object:
    return value.total_seconds() if isinstance(value, timedelta) else value


def _no_text(value: object) -> object:
    if isinstance(value, str):
        raise ValueError(f'write a list: ["{value}"]')
    return value


def _no_scope_text(value: object) -> object:
    if isinstance(value, str) and ":" not in value:
        raise ValueError(f'write a list: ["header:{value}"], or ["jwt:{value}"] for a claim of a verified token')
    return _no_text(value)


def _no_switch(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("write a percentage: 0 for none of the keys, 100 for all")
    return value


InAList = BeforeValidator(_no_text)
Seconds = Annotated[float, Field(gt=0, le=10 * 366 * 86400), BeforeValidator(_in_seconds)]
"""A time-out or a time to live: above zero, at most ten years. A ``timedelta`` is taken for what it lasts."""
Wait = Annotated[float, Field(ge=0, le=3600)]
WholeSeconds = Annotated[int, Field(ge=0, le=3600)]
"""As ``Prefer: wait`` has them."""
Bytes = Annotated[int, Field(ge=0)]
Percent = Annotated[float, Field(ge=0, le=100), BeforeValidator(_no_switch)]
FieldName = Annotated[str, Spelling(FIELD_NAME, "a header's name: letters, digits and hyphens")]
"""An HTTP field name (RFC 9110 section 5.1)."""
Method = Annotated[str, Spelling(r"[!#$%&'*+.^_`|~0-9A-Z-]+", 'a method in capitals: "POST"')]


def _with_kind(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(FIELD_NAME, value):
        raise ValueError(f'write "header:{value}" for a header, or "jwt:{value}" for a claim of a verified token')
    return value


ScopePart = Annotated[
    str,
    Spelling(
        rf"header:{FIELD_NAME}|jwt:[!-~]{{1,128}}", '"header:NAME", or "jwt:CLAIM" for a claim of a verified token'
    ),
    BeforeValidator(_with_kind),
]
"""A header, or a claim of a verified token, by which callers are told apart."""
# Kept as tuples. For type checkers any sequence will do, since a list is what most people write.
FieldNames = Annotated[
    Sequence[str], GetPydanticSchema(lambda _, handler: handler(Annotated[tuple[FieldName, ...], InAList]))
]
Methods = Annotated[
    Sequence[str], GetPydanticSchema(lambda _, handler: handler(Annotated[tuple[Method, ...], InAList]))
]
_Scope = Annotated[tuple[ScopePart, ...], Field(min_length=1), BeforeValidator(_no_scope_text)]
ScopeParts = Annotated[Sequence[str], GetPydanticSchema(lambda _, handler: handler(_Scope))]
NAME = r"[A-Za-z0-9_.-]{1,64}"
"""The name of a namespace, a stream or a consumer: fit to be a part of a key in Redis."""
Name = Annotated[str, Spelling(NAME, "a name of 1 to 64 letters, digits, dots, underscores and hyphens")]
Aggregate = Annotated[str, Spelling(f"path|header:{FIELD_NAME}", '"path" or "header:NAME"')]
Mode = Literal["sync", "async", "either"]
"""Is a request executed at once, accepted to be processed later, or whichever it asks for (``Prefer: respond-async``)?"""
Kind = Literal["success", "failure", "release", "unknown"]
"""The meaning of a response's status for the command: keep as done, keep as an error, keep nothing, can't be known."""
OnError = Literal["retry", "replay"]
OnUnknown = Literal["refuse", "retry"]
OnMissingKey = Literal["run", "reject", "generate"]
OnMismatch = Literal["reject", "warn"]
OnCacheDown = Literal["fail_closed", "fail_open"]
Comparison = Literal["raw", "json"]
Completion = Literal["auto", "response", "app-returned"]
"""The values of settings. Policies, the description of the HTTP API and pages take them from here."""
StatusClass = Literal["2xx", "3xx", "4xx", "5xx"]


def _status(value: object, handler: ValidatorFunctionWrapHandler) -> object:
    try:
        return handler(value)
    except ValidationError:
        words = 'must be a status from 200 to 599, or a class of them: "2xx", "3xx", "4xx", "5xx"'
        raise PydanticCustomError("status", words) from None


_Status = Annotated[Annotated[int, Field(ge=200, le=599)] | StatusClass, WrapValidator(_status)]
_OF_STATUSES: Final[dict[str, Any]] = {"propertyNames": {"pattern": "^[2-5]([0-9][0-9]|xx)$"}}
Statuses = Annotated[dict[_Status, Kind], Field(json_schema_extra=_OF_STATUSES)]
"""Meanings of statuses: an exact one counts before its class (RFC 9110, section 15)."""

"""Serializes commands for their fingerprint, and results for the record.

A command counts by what its executor sees of it: every field, whatever the model's own serializers mask, drop or round.
Two commands whose fingerprints are equal would be given one result, so that a card number behind a mask, a NaN written as
null or a field with an underscore must not make two of them the same.
"""

import dataclasses
import json
import logging
import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from operator import index
from typing import Any, Final, Protocol, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, RootModel, Secret, SecretBytes, SecretStr, TypeAdapter
from pydantic_core import PydanticSerializationError, to_jsonable_python

from oncegate.cache.fields import BODILESS, HOP_BY_HOP, is_field_name, is_field_value
from oncegate.cache.record import LAST_INSTANT_MS, StoredResponse
from oncegate.middleware.outcome.raised import kind_and_text

log = logging.getLogger("oncegate.outcome")

Result = TypeVar("Result")


def command_form(command: Any) -> bytes:
    """The one JSON spelling of a command. Raises ``TypeError`` where it has none: before any effect.

    Models and dataclasses count by their fields, mappings by their items in any order, sets by their members. The type's
    own name doesn't count: give each kind of command a processor, or a field, of its own.
    """
    try:
        return _spell(_plain(command))
    except RecursionError:
        raise TypeError("a command nests too deep, or holds itself") from None
    except ValueError as error:
        raise TypeError(f"a command has no JSON form: {error}") from None


def octets(data: Any) -> bytes:
    """``data`` as bytes: what makes results and payloads may give a bytearray, or a view. Raises ``TypeError`` for another."""
    return data if isinstance(data, bytes) else bytes(memoryview(data))


def _spell(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _plain(value: Any) -> Any:  # noqa: C901 - one line for each kind
    if isinstance(value, Enum):
        return _plain(value.value)
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return _finite(value)
    if isinstance(value, SecretStr | SecretBytes | Secret):
        return _plain(value.get_secret_value())
    if isinstance(value, RootModel):
        return _plain(value.root)
    if isinstance(value, BaseModel):
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        return _plain(fields | (value.model_extra or {}))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, Mapping):
        return _members(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return "data:;base64," + b64encode(value).decode()
    if isinstance(value, Set):
        return sorted((_plain(item) for item in value), key=_spell)
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    return _leaf(value)


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise TypeError("a command holds a float that is not finite, which has no JSON form")
    return value


def _members(value: Mapping[Any, Any]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, item in value.items():
        plain = _plain(key)
        name = plain if isinstance(plain, str) else _spell(plain).decode()
        if name in members:
            raise TypeError(f"two of a command's members are named {type(key).__name__} alike in JSON")
        members[name] = _plain(item)
    return members


def _leaf(value: Any) -> str | float:
    """Times, UUIDs, decimals, paths, addresses: by their spelling."""
    if not isinstance(value, Iterator):  # reading one would take it from the executor
        try:
            spelled = to_jsonable_python(value)
        except PydanticSerializationError:
            spelled = None
        if isinstance(spelled, str | int | float):
            return _finite(spelled) if isinstance(spelled, float) else spelled
    raise TypeError(f"a command holds a {type(value).__name__}, which has no JSON form") from None


class Codec(Protocol[Result]):
    """How results are stored, where JSON is not enough."""

    def dump(self, result: Result) -> bytes:
        """``result`` as bytes. What it raises lets the success be recorded without the result."""
        ...

    def load(self, data: bytes) -> Result:
        """The result that `dump` was given."""
        ...


class JsonCodec:
    """Results as JSON, by pydantic. Without a ``result_type`` they come back as plain JSON values.

    With one, a result is kept only if it comes back equal: pydantic masks secrets, drops excluded fields and writes down
    values of other types as well as it can, and no later caller may take that for the result.
    """

    def __init__(self, result_type: Any) -> None:
        self._typed = result_type is not Any
        config = None if self._typed else ConfigDict(ser_json_inf_nan="constants")
        self._adapter: TypeAdapter[Any] = TypeAdapter(result_type, config=config)

    def dump(self, result: Any) -> bytes:
        """See `Codec.dump`."""
        if not self._typed:
            return self._adapter.dump_json(result)
        data = self._adapter.dump_json(result, warnings="error")
        if self._adapter.validate_json(data) != result:
            raise ValueError("it does not come back equal")
        return data

    def load(self, data: bytes) -> Any:
        """See `Codec.load`."""
        return self._adapter.validate_json(data)


JSON_CODEC = JsonCodec(Any)


def dumped(dump: Callable[[Any], bytes], result: Any, record: str) -> bytes | None:
    """``result`` as it is kept; ``None``, and a warning, where it can't be: its effect has happened all the same."""
    try:
        return octets(dump(result))
    except BaseException as error:  # noqa: BLE001  # whatever a value's own serializer raises
        log.warning("record %s: the result can't be stored: %s", record, type(error).__name__)
        return None


CONTENTLESS: Final = BODILESS | {205}
"""The statuses of answers that nothing may be sent with (RFC 9110 section 15.3.6, too)."""


def checked_response(status: Any, headers: Iterable[Any], body: Any, completed_at_ms: Any) -> StoredResponse:
    """A response that somebody's own code, or an operator, gives, in the very types that a record has, without hop-by-hop fields.

    Bytes may be a bytearray, or a view; the instant may have a fraction. Raises ``TypeError`` or ``ValueError``, which say what
    is wrong and quote nothing, for what could not be replayed.
    """
    status = index(status)
    if not 200 <= status <= 599:
        raise ValueError("a status is from 200 to 599")
    kept = None if body is None else octets(body)
    if kept and status in CONTENTLESS:
        raise ValueError(f"a response of status {status} has no body")
    lines = [(octets(name).lower(), octets(value).strip(b" \t")) for name, value in headers]
    if not all(is_field_name(name) and is_field_value(value) for name, value in lines):
        raise ValueError("a header is a name and a value without line breaks")
    if not 0 <= completed_at_ms <= LAST_INSTANT_MS:
        raise ValueError("an instant is in milliseconds since 1970, and before the year 10000")
    return StoredResponse(
        status, tuple(line for line in lines if line[0] not in HOP_BY_HOP), kept, int(completed_at_ms)
    )


def bounded(most: int, kept: bytes | None, record: str) -> bytes | None:
    """``kept``; ``None``, and a warning, where it has more than ``most`` bytes."""
    if kept is None or len(kept) <= most:
        return kept
    log.warning("record %s: the result is too large to be stored", record)
    return None


def error_form(error: BaseException | str, *, dead: bool = False) -> bytes:
    """An exception as it is kept: its type's name and its text, bounded; ``dead`` where no attempt will follow."""
    kind, message = kind_and_text(error)
    members: dict[str, Any] = {"type": kind, "message": message}
    return orjson.dumps(members | {"dead": True} if dead else members)


def read_error(response: StoredResponse | None) -> dict[str, Any]:
    """The members of what `error_form` has made; none where nothing was kept, or no JSON object.

    A version before wrote what calls raised with a ``kind`` for the ``type``.
    """
    try:
        members = orjson.loads((response.body if response is not None else None) or b"{}")
    except ValueError:
        return {}
    if not isinstance(members, dict):
        return {}
    if members.keys() == {"kind", "message"}:
        return {"type": members["kind"], "message": members["message"]}
    return members

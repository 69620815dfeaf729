"""The arguments of a handler, but its session, as JSON: stored with a parked message, and made back for its run."""

from base64 import b64decode, b64encode
from contextlib import suppress
from typing import Any, Final, get_type_hints

import orjson
from pydantic import TypeAdapter

from oncegate.middleware.consumers.sql_interface import NotRetryable
from oncegate.sql.handlers.handler import Handler, signature_without

_BYTES: Final = "base64"


class ParkedArguments:
    """The arguments of ``handler``, but for its ``session``; each is read by its parameter's annotation."""

    def __init__(self, handler: Handler, session: str) -> None:
        self._signature = signature_without(handler, session)
        self._handler = handler
        self._adapters: dict[str, TypeAdapter[Any]] | None = None

    def dump(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """The arguments as they are stored; ``None`` for what would not come back as it is."""
        with suppress(Exception):  # whatever a value's own serializer raises, or its comparison
            given = self._signature.bind(*args, **kwargs).arguments
            stored = orjson.dumps({name: self._dump(name, value) for name, value in given.items()}).decode()
            back = self.load(stored)
            if back == given and all(type(back[name]) is type(value) for name, value in given.items()):
                return stored
        return None

    def load(self, stored: str) -> dict[str, Any]:
        """The arguments by their parameters' names. Raises `NotRetryable` for what its handler can't take any more."""
        try:
            return {name: self._load(name, value) for name, value in orjson.loads(stored).items()}
        except ValueError as error:  # pydantic's, whose text quotes the payload
            raise NotRetryable(f"what was parked does not fit the handler any more ({type(error).__name__})") from None

    def _dump(self, name: str, value: Any) -> Any:
        if isinstance(value, bytes):
            return {_BYTES: b64encode(value).decode()}
        return [orjson.loads(self._adapter(name).dump_json(value))]

    def _load(self, name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return b64decode(value[_BYTES])
        return self._adapter(name).validate_json(orjson.dumps(value[0]))

    def _adapter(self, name: str) -> TypeAdapter[Any]:
        if self._adapters is None:
            hints: dict[str, Any] = {}
            with suppress(Exception):  # an annotation that can't be read is none
                hints = get_type_hints(self._handler, include_extras=True)
            self._adapters = {each: TypeAdapter(hints.get(each, Any)) for each in self._signature.parameters}
        return self._adapters[name]

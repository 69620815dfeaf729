"""The settings of the rules, as users write them: `IdempotencySettings` for all routes, `Route` for what differs on some.

Wrong values fail at construction, with pydantic's ``ValidationError``. Times are in seconds, sizes in bytes.
"""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field, ValidationInfo, field_validator, model_validator

from oncegate.cache.fields import HOP_BY_HOP
from oncegate.middleware.rules.headers.added_headers import ADDED_HEADERS
from oncegate.middleware.rules.keys.key_form import A_GENERATED_KEY, KeyForm
from oncegate.middleware.rules.paths.path_pattern import parts_of
from oncegate.middleware.rules.setting_types import (
    Aggregate,
    Bytes,
    Comparison,
    Completion,
    FieldName,
    FieldNames,
    Methods,
    Mode,
    Name,
    OnCacheDown,
    OnError,
    OnMismatch,
    OnMissingKey,
    OnUnknown,
    Percent,
    ScopeParts,
    Seconds,
    Statuses,
    Wait,
    WholeSeconds,
)
from oncegate.middleware.rules.spelling import Spelling
from oncegate.middleware.rules.strict_settings import StrictSettings

DEFAULT_METHODS = ("POST", "PATCH")
_HOP_BY_HOP = "|".join(name.decode() for name in HOP_BY_HOP)
_ADDED = "|".join(each.name for each in ADDED_HEADERS if each.name != "Idempotency-Key")
_MEANS_SOMETHING_ELSE = re.compile(
    rf"{_HOP_BY_HOP}|{_ADDED}|content-.*|expect|host|via|date|forwarded|x-forwarded-.*|authorization|(set-)?cookie"
    r"|cache-control|vary|location|prefer|idempotency-attempt|idempotency-raise-on-duplicate",
    re.IGNORECASE,
)
"""Headers that can't carry the key: it is echoed in the response under this name, where these frame it or say something else."""
_OF_ONE_CONNECTION = re.compile(
    rf"{_HOP_BY_HOP}|expect|host|content-length|idempotency-attempt|oncegate-.*", re.IGNORECASE
)
"""Headers that can't travel with a command: they frame one message, or are made anew for it."""
_OF_ONE_TOKEN = re.compile("jwt:(exp|iat|nbf|jti)")
_REFUSED = {
    "header": (_MEANS_SOMETHING_ELSE, "means something else in HTTP and can't carry the key"),
    "aliases": (_MEANS_SOMETHING_ELSE, "means something else in HTTP and can't carry the key"),
    "scope": (_OF_ONE_TOKEN, "is another one with each token, and names no caller"),
    "forward_request_headers": (
        _OF_ONE_CONNECTION,
        "is about one connection, or is written anew for a command, and can't travel with it",
    ),
}
"""Names that a setting can't have, and why."""


DEFAULT_SCOPE: Final = ("header:Authorization",)


class IdempotencySettings(StrictSettings):
    """How idempotency keys are enforced. Each field's default is the one to start with; a `Route` may override any of them."""

    header: FieldName = Field(default="Idempotency-Key", description="the header that carries the key")
    aliases: FieldNames = Field(default=(), description="other headers that are read as the key")
    ttl: Seconds = Field(
        default=86400, description="how long a success is kept; an unknown outcome, too, since it may be one"
    )
    error_ttl: Seconds = Field(default=60, description="how long an error is kept")
    lease: Seconds = Field(
        default=30, description="how long an attempt's gateway may be silent; then the outcome is unknown"
    )
    on_error: OnError = Field(
        default="retry", description="after an error a retry is a new attempt, or gets the stored error"
    )
    on_unknown: OnUnknown = Field(
        default="refuse", description="after an unknown outcome a retry gets 409, or is a new attempt"
    )
    on_mismatch: OnMismatch = Field(
        default="reject",
        description="another body or query under a succeeded key gets 422, or a replay and a warning in the log",
    )
    on_cache_down: OnCacheDown = Field(
        default="fail_closed",
        description="while the cache can't be reached, requests with a key get 503, or are executed without enforcement",
    )
    scope: ScopeParts | None = Field(
        default=None,
        description="the headers (`header:Name`) and claims of a verified token (`jwt:sub`, see `[jwt]`) that tell callers "
        "apart; not given: `header:Authorization`, and a caller that is known by a cookie alone is refused",
    )
    require_scope: bool = Field(default=False, description="refuse a caller without any of the scope's headers")
    on_missing_key: OnMissingKey = Field(
        default="run", description="a request without a key is executed without enforcement, refused, or given a key"
    )
    raise_on_duplicate: bool = Field(
        default=False, description="answer a duplicate with an error that carries the original result"
    )
    fingerprint: Comparison = Field(default="raw", description="compare bodies byte by byte, or as JSON values")
    drop_headers: FieldNames = Field(default=(), description="response headers that are not stored")
    forward_request_headers: FieldNames = Field(
        default=(),
        description="request headers that travel with an asynchronous command, beside `Content-*`: they lie in its stream",
    )
    max_request_body: Bytes = Field(
        default=1048576, description="bytes of an enforced request's body; a larger one gets 413"
    )
    max_result: Bytes = Field(
        default=1048576,
        description="bytes of a response's body, or of a result; of a larger one only the outcome is kept",
    )
    keep_body: bool = Field(
        default=True, description="false: only a response's status is kept, and a retry gets `duplicate`"
    )
    complete: Completion = Field(
        default="auto",
        description="when an app's outcome is recorded and the last byte sent: with its response, or once the app has "
        "returned; auto: once it has returned where a FastAPI dependency of the route ends after the response, "
        "else with the response",
    )
    key_pattern: str = Field(
        default="",
        description="the form that keys have, else 400 `key-invalid`: `uuid`, `uuid7`, `ulid`, or a regular expression for "
        "the whole key, in Rust's syntax; empty: any",
    )
    wait: WholeSeconds = Field(
        default=0,
        description="seconds that a concurrent duplicate waits for the outcome, if its Prefer: wait says nothing else; "
        "0: it gets 409 at once",
    )
    max_wait: Wait = Field(default=30, description="the most seconds that Prefer: wait may ask for")
    response_timeout: Seconds = Field(
        default=30, description="seconds until the response's head; then 504, and the attempt goes on"
    )
    attempt_timeout: Seconds = Field(
        default=900, description="seconds until the response's last byte; then the outcome is unknown"
    )
    enforce: Percent = Field(
        default=100,
        description="percent of the keys that are under enforcement, by the key's digest; below 100 a request without a key "
        "that can be read is not",
    )
    shadow: bool = Field(
        default=False,
        description="what `enforce` leaves out is observed: forwarded untouched, and what enforcement would have answered is "
        "counted and logged",
    )
    docs_url: str = Field(
        default="",
        description="the page that problems link to, each by its `#slug`; with a `/` at the end each has a page of its own "
        "there; not given: the gateway's own pages, `problems/` under `prefix`, or in an app none",
    )

    @property
    def scope_parts(self) -> Sequence[str]:
        """The parts of ``scope``, or of the default, by which callers are told apart."""
        return DEFAULT_SCOPE if self.scope is None else self.scope

    @field_validator("docs_url")
    @classmethod
    def _printable(cls, value: str) -> str:
        if not value.isascii() or any(c in value for c in '<>"\\^`{}| ') or not value.isprintable():
            raise ValueError("must be a URL of printable ASCII, without spaces, quotes or angle brackets")
        return value

    @field_validator("key_pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        KeyForm.of(value)
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "IdempotencySettings":
        if self.wait > self.max_wait:
            raise ValueError(f"wait: {self.wait} is above max_wait ({self.max_wait:g}), which bounds it")
        form = KeyForm.of(self.key_pattern)
        if form is not None and self.on_missing_key == "generate" and not form.matches(A_GENERATED_KEY):
            raise ValueError('key_pattern: refuses the keys that on_missing_key = "generate" makes: UUIDs of version 4')
        return self

    @field_validator(*_REFUSED)
    @classmethod
    def _is_fit(cls, value: str | Sequence[str] | None, info: ValidationInfo) -> str | Sequence[str] | None:
        refused, why = _REFUSED[info.field_name or ""]
        for name in () if value is None else (value,) if isinstance(value, str) else value:
            if refused.fullmatch(name):
                raise ValueError(f"{name} {why}")
        return value


def check_enforce(where: str, mode: Mode, rules: IdempotencySettings) -> None:
    """Raises ``ValueError`` where only a part of the keys would be under enforcement on a route whose commands are submitted."""
    if mode != "sync" and rules.enforce < 100:
        raise ValueError(
            f'{where}.enforce: is {rules.enforce:g}, and mode = "{mode}" accepts no command without enforcement: '
            "set enforce = 100 on this route"
        )


def claims_of(settings: IdempotencySettings) -> tuple[str, ...]:
    """The claims that a scope names."""
    return tuple(part.removeprefix("jwt:") for part in settings.scope_parts if part.startswith("jwt:"))


class Overrides(StrictSettings):
    """Any field of `IdempotencySettings`, as a `Route` may give it; ``None`` and what is not given: as the settings say.

    Written out, so that type checkers and editors know them; a test holds them to the settings. What is wrong only together
    with the settings, or by more than its type, fails where both come together: see `Route.settings`.
    """

    header: FieldName | None = None
    aliases: FieldNames | None = None
    ttl: Seconds | None = None
    error_ttl: Seconds | None = None
    lease: Seconds | None = None
    on_error: OnError | None = None
    on_unknown: OnUnknown | None = None
    on_mismatch: OnMismatch | None = None
    on_cache_down: OnCacheDown | None = None
    scope: ScopeParts | None = None
    require_scope: bool | None = None
    on_missing_key: OnMissingKey | None = None
    raise_on_duplicate: bool | None = None
    fingerprint: Comparison | None = None
    drop_headers: FieldNames | None = None
    forward_request_headers: FieldNames | None = None
    max_request_body: Bytes | None = None
    max_result: Bytes | None = None
    keep_body: bool | None = None
    complete: Completion | None = None
    key_pattern: str | None = None
    wait: WholeSeconds | None = None
    max_wait: Wait | None = None
    response_timeout: Seconds | None = None
    attempt_timeout: Seconds | None = None
    enforce: Percent | None = None
    shadow: bool | None = None
    docs_url: str | None = None


class Route(Overrides):
    """Paths on which other rules hold: any field of `IdempotencySettings` may be given. The first route that matches counts.

    - ``path``: matched against the decoded, normalised path, below ASGI's ``root_path``. ``*`` stands for any run of
      characters. Frameworks' path parameters are understood: ``{id}`` (``{id:int}``) is one segment, ``{rest:path}`` any run.
    - ``methods``: those under enforcement. ``[]`` switches it off on the path: ``Route(path="*", methods=[])`` behind the
      others leaves only those under enforcement.
    - ``mode``: with ``"async"`` (or ``"either"``, and ``Prefer: respond-async``) a request is not executed but appended to a
      command stream, and answered 202.
    - ``stream``: that stream; ``consumer`` (the stream's name, if not given) names whose processing is shown to the caller.
    - ``aggregate``: where the id stands of what the command is about: ``"path"``, by the first ``*``, or ``"header:NAME"``. The
      command gets the next number there, and may say which version it expects; with ``require_version`` it has to.
    - ``status``: the meaning of statuses, or of classes of them (``"5xx"``); an exact one counts before its class.
    """

    path: Annotated[str, Spelling(r"(?s:[/*].*)", 'a path that begins with /, or * for all: "/payments/*"')]

    if not TYPE_CHECKING:  # type checkers take the fields for it

        def __init__(self, *path: str, **given: Any) -> None:
            """``Route("/x")`` is ``Route(path="/x")``."""
            if len(path) > 1:
                raise TypeError("Route takes its path by place, and all else by name: Route(path, ttl=...)")
            super().__init__(**(dict(zip(("path",), path, strict=False)) | given))

    methods: Methods = DEFAULT_METHODS
    mode: Mode = "sync"
    stream: Name = "commands"
    consumer: Name | None = None
    aggregate: Aggregate | None = None
    require_version: bool = False
    status: Statuses = Field(default_factory=dict)

    @property
    def consumer_name(self) -> str:
        """The consumer whose processing is shown to the caller."""
        return self.consumer or self.stream

    def settings(self, base: IdempotencySettings) -> IdempotencySettings:
        """``base`` with this route's overrides, validated as a whole. Raises pydantic's ``ValidationError``."""
        overrides = self.model_dump(include=set(IdempotencySettings.model_fields), exclude_none=True)
        return IdempotencySettings.model_validate(base.model_dump() | overrides)

    @field_validator("path")
    @classmethod
    def _understood(cls, value: str) -> str:
        parts_of(value)
        return value

    @model_validator(mode="after")
    def _enforces(self) -> "Route":
        if not self.methods and Route.model_construct(path=self.path, methods=self.methods) != self:
            raise ValueError("methods = [] switches enforcement off here: no other setting counts")
        return self

    @model_validator(mode="after")
    def _numbers(self) -> "Route":
        if self.aggregate is None:
            if self.require_version:
                raise ValueError('require_version needs aggregate: "path" or "header:NAME", whose version it is')
            return self
        if self.mode == "sync":
            raise ValueError('aggregate needs mode = "async" or "either": what is executed at once gets no number')
        if self.aggregate == "path" and len(parts_of(self.path)) < 2:
            raise ValueError('aggregate = "path" needs a * in path, which stands for the aggregate\'s id')
        return self

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        return ((name, value) for name, value in super().__repr_args__() if name in self.model_fields_set)

"""The rules for requests."""

from typing import Annotated, Literal

from pydantic import Field

from oncegate.app.operators.pages.described.document import Digest, Missing, Sent
from oncegate.middleware.rules.setting_types import Comparison, Mode, OnError, OnMismatch, OnUnknown


class KeyRules(Sent):
    syntax: list[str]
    characters: Annotated[list[int], Field(min_length=2, max_length=2, description="At least and at most")]
    case_sensitive: Literal[True]


class ScopeRules(Sent):
    headers: Annotated[list[str], Field(description="What tells callers apart")]
    claims: Annotated[list[str], Field(description="The same, of a verified token")]
    required: bool


class FingerprintRules(Sent):
    parts: tuple[Literal["method"], Literal["path"], Literal["query"], Literal["body"]]
    body: Comparison


_Seconds = Annotated[float, Field(gt=0)]
_Ranges = list[Annotated[str, Field(pattern="^[2-5][0-9]{2}(-[2-5][0-9]{2})?$")]]


class Expiry(Sent):
    """Seconds."""

    success: _Seconds
    error: _Seconds
    unknown: _Seconds


class Statuses(Sent):
    """The statuses that count as each outcome, as ranges ("200-399")."""

    success: _Ranges
    error: _Ranges
    unknown: _Ranges
    not_kept: _Ranges


class WaitRules(Sent):
    """Seconds that a concurrent duplicate waits for the outcome: where Prefer doesn't say, and the most that it may ask for."""

    by_default: Annotated[int, Field(ge=0)]
    at_most: Annotated[float, Field(ge=0)]


class RoutePolicy(Sent):
    path: str = Field(description="* stands for any run of characters")
    methods: Annotated[list[str], Field(description="Empty where enforcement is switched off")]
    matched: bool | Missing = Field(
        default=None, description="Whether a request has matched it since the start, in any worker; not of the last"
    )
    mode: Mode = Field(description="Whether a request is executed at once or accepted to be processed later")
    header: str
    aliases: list[str]
    required: bool
    generated_if_missing: bool
    key_pattern: str | None = Field(description="uuid, uuid7, ulid, or a regular expression; null: any key")
    wait: WaitRules
    scope: ScopeRules
    fingerprint: FingerprintRules
    expiry: Expiry
    statuses: Statuses
    enforced_percent: Annotated[float, Field(ge=0, le=100)] = Field(
        description="Percent of the keys that are under enforcement; what is not passes untouched"
    )
    on_error: OnError
    on_unknown: OnUnknown
    on_mismatch: OnMismatch
    on_duplicate: Literal["replay", "error"]
    documentation: str


class PolicyShape(Sent):
    specification: Literal["draft-ietf-httpapi-idempotency-key-header-07"]
    gateway: Annotated[str, Field(pattern="^oncegate ")]
    configuration: Digest = Field(description="Of all settings in effect, without anything secret")
    key: KeyRules
    routes: Annotated[
        list[RoutePolicy],
        Field(min_length=1, description="In the order in which they are tried; the last is for all other paths."),
    ]

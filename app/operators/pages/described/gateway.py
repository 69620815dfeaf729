"""The gateway itself: whether it is ready, what it has decided lately, what a reload has brought."""

from typing import Literal

from pydantic import AwareDatetime, Field

from oncegate.app.operators.pages.described.document import Digest, Missing, Sent


class Health(Sent):
    status: Literal["up"]


class ReadinessShape(Sent):
    status: Literal["ready", "not ready", "draining"]
    upstream: Literal["reachable", "unreachable"]
    cache: Literal["available", "read-only", "unavailable"] = Field(
        description="What passes through doesn't need it. read-only: replays are answered, new keys are refused"
    )


class Ready(ReadinessShape):
    status: Literal["ready"]
    upstream: Literal["reachable"]


class NotReady(ReadinessShape):
    status: Literal["not ready", "draining"]


class DecidedShape(Sent):
    route: str = Field(description="The pattern, * for the default one")
    decision: str = Field(description="As in oncegate_requests_total")
    mode: Literal["enforced", "shadow"]
    count: int


class EndedShape(Sent):
    route: str = Field(description="The pattern, * for the default one")
    outcome: Literal["succeeded", "failed", "unknown", "released"] = Field(description="As in oncegate_attempts_total")
    count: int


class DecisionList(Sent):
    since: AwareDatetime
    seconds: float = Field(
        description="How long that is ago: up to a minute more, or less where it has not run for so long"
    )
    process: str = Field(description="The host and process that answers")
    decisions: list[DecidedShape]
    outcomes: list[EndedShape] | Missing = Field(default=None, description="Of the attempts that ended in that time")


class ReloadedShape(Sent):
    configuration: Digest = Field(description="The digest of what is in effect")
    after_restart: list[str] = Field(description="Settings that have changed, and take effect with a restart")

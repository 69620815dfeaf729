"""The shapes of a gateway's ``records/`` answers, as far as the command line relies on them; other answers are refused."""

from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from oncegate.middleware.rules.key import RECORD_ID

RecordId = Annotated[str, Field(pattern=f"^{RECORD_ID.pattern}$")]


class _Shape(BaseModel):
    """Other members may be there too: a newer gateway may send more."""

    model_config = ConfigDict(hide_input_in_errors=True)


class _Summary(_Shape):
    id: RecordId
    state: Literal["in-flight", "succeeded", "failed", "unknown"]
    attempt: int
    lapsed: bool
    submission: bool = False
    began_at: AwareDatetime | None
    ended_at: AwareDatetime | None
    took: float | None
    gateway: str | None
    note: str | None
    method: str | None = None
    route: str | None = None
    status: int | None
    lease_left: float | None
    expires_in: float


class _Unreadable(_Shape):
    id: RecordId
    state: Literal["unreadable"]


class _Response(_Shape):
    status: int


class ToldListing(_Shape):
    """``GET records/``."""

    records: list[_Summary | _Unreadable]
    cursor: str


class ToldRecord(_Summary):
    """``GET records/ID``."""

    found: str | None
    response: _Response | None


class ToldIds(_Shape):
    """``POST records/find``."""

    ids: list[RecordId]


class ToldResolution(_Shape):
    """``POST records/ID/release`` and ``resolve``; why nothing was changed, too."""

    resolution: Literal["resolved", "absent", "in-flight", "settled", "other-attempt"]


class ToldProblem(_Shape):
    """A problem: the answer to any refused request."""

    title: str
    status: int
    detail: str | None = None

"""Who was refused lately, and for what."""

from typing import Annotated

from pydantic import AwareDatetime, Field

from oncegate.app.operators.pages.described.document import CallerDigest, Sent


class RefusedRoute(Sent):
    route: str = Field(description="The pattern, * for the default one")
    count: Annotated[int, Field(ge=1)]
    decisions: dict[str, int] = Field(
        description="By problem; mismatch-warned: a replay, although the payload was another one (on_mismatch = warn)"
    )


class RefusedCaller(Sent):
    caller: CallerDigest | None = Field(
        description="Its digest, as records' ids have it behind the colon; null where it was refused before that was known"
    )
    count: Annotated[int, Field(ge=1)]
    routes: list[RefusedRoute]


class RefusedList(Sent):
    since: AwareDatetime
    seconds: float = Field(
        description="How long that is ago: up to a minute more, or less where it has not run for so long"
    )
    process: str = Field(description="The host and process that answers")
    refused: Annotated[int, Field(ge=0)] = Field(description="All that were refused in that time")
    others: Annotated[int, Field(ge=0)] = Field(
        description="How many of them are not listed: of callers behind the limit, or of callers who gave their place in a "
        "minute's bounded table to another one"
    )
    callers: list[RefusedCaller]

"""The base of all models of documents: what comes in is checked by them, and all of them are described.

What goes out is written from plain dicts: a model would change the bodies that it quotes. Where a class elsewhere has the
name, the one here ends with ``Shape``, and its schema doesn't (`oncegate.app.operators.pages.described.description`).
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from oncegate.app.operators.audit import MOST_REASON, REASON
from oncegate.app.operators.records.newest import CALLER_DIGEST
from oncegate.cache.redis.streams.entry_id import ENTRY_ID
from oncegate.middleware.rules.keys.key import RECORD_ID

PATTERN: dict[str, Any] = {"pattern": f"^{RECORD_ID.pattern}$"}
"""The form of a record's id: described, and checked where the record is looked for, which says what is wrong in better words."""
RecordId = Annotated[str, Field(pattern=PATTERN["pattern"])]
CallerDigest = Annotated[str, Field(pattern=f"^{CALLER_DIGEST.pattern}$")]
Position = Annotated[str, Field(pattern=f"^{ENTRY_ID.pattern}$")]
Sequence = Annotated[int, Field(ge=1)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{12}$")]
Lines = list[tuple[str, str]]
Missing = SkipJsonSchema[None]
"""In the place of a member that may be left out, and is never null."""


class Sent(BaseModel):
    """A document that a gateway sends. A reader lets other members be there too: a newer gateway may send more."""

    model_config = ConfigDict(hide_input_in_errors=True, json_schema_extra={"additionalProperties": False})


class Received(BaseModel):
    """A document that a gateway is sent, with these members alone."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Change(Received):
    reason: Annotated[str, Field(max_length=MOST_REASON, pattern=f"^{REASON.pattern}$")] = Field(
        default="", description="Kept with the record or the command, and logged, beside the operator's name"
    )

"""An asynchronous command, as its caller sees it."""

from typing import Annotated, Literal

from pydantic import Field

from oncegate.app.operators.pages.described.document import Missing, Position, RecordId, Sent, Sequence
from oncegate.app.operators.pages.described.problem import OriginalResult


class Accepted(Sent):
    """The body of a 202, with which a command is accepted on a route whose mode is async, or either with
    Prefer: respond-async. Location names its status. A retry gets the same 202."""

    status: Literal["accepted"]
    position: Position = Field(description="In the command stream")
    command: RecordId
    sequence: Sequence | Missing = Field(
        default=None, description="Its number among its aggregate's commands, on a route with aggregate"
    )


class CommandError(Sent):
    type: str
    message: str


class CommandStatus(Sent):
    command: RecordId
    status: Literal["accepted", "in-flight", "succeeded", "failed", "unknown", "dead-lettered"] = Field(
        description="failed and unknown are followed by another attempt; succeeded is the end, and so is dead-lettered "
        "unless an operator retries the command."
    )
    position: Position | Missing = Field(default=None, description="In the command stream, while the 202 is kept")
    sequence: Sequence | Missing = Field(
        default=None, description="Its number among its aggregate's commands, while the 202 is kept"
    )
    attempt: Annotated[int, Field(ge=1)] | Missing = Field(
        default=None, description="The number of the last attempt that was begun"
    )
    detail: str | Missing = None
    result: OriginalResult | Missing = None
    error: CommandError | OriginalResult | Missing = None

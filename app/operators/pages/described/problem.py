"""Problems, of requests and of operations, and the result that one may bring."""

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, Field, StringConstraints

from oncegate.app.operators.pages.described.document import Lines, Missing, RecordId, Sent


class ErrorMember(Sent):
    """The problem once more, in the form that SDKs of a well-known family look for."""

    type: Literal["api_error", "idempotency_error", "invalid_request_error"]
    code: str = Field(description="The problem's code; of an operation's problem, its title: not-found")
    message: Annotated[str, Field(min_length=1, description="detail, where there is one")]


class OriginalResult(Sent):
    """With the code duplicate, the result that is there. The same of a command that has succeeded."""

    status: Annotated[int, Field(ge=200, le=599)] | Missing = None
    headers: Lines | Missing = None
    body: Any = Field(default=None, description="A JSON value, else a string, else base64")
    body_encoding: Literal["base64"] | Missing = None
    body_omitted: Literal[True] | Missing = Field(default=None, description="It was too large to be kept")
    completed_at: AwareDatetime | None = None


RequestId = Annotated[
    str,
    StringConstraints(pattern="^[A-Za-z0-9._-]{1,128}$"),
    Field(description="The id of this request, as in X-Request-Id and in logs"),
]


class Problem(BaseModel):
    """A problem (RFC 9457) that the gateway answers with in the upstream's place."""

    type: Annotated[str, Field(min_length=1, json_schema_extra={"format": "uri-reference"})] = Field(
        description="The page about it: prefix, problems/ and the code, or docs_url and the code as its fragment"
    )
    title: str
    status: int
    detail: Annotated[str, Field(min_length=1)]
    code: str
    retryable: bool = Field(description="Whether the same request may be sent again unchanged")
    error: ErrorMember
    idempotency_key: Annotated[str, Field(min_length=1, max_length=255)] | Missing = None
    record: RecordId | Missing = Field(default=None, description="An id that logs carry too")
    request_id: RequestId
    original_result: OriginalResult | Missing = None
    original_trace_id: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] | Missing = Field(
        default=None, description="The trace of the first execution, where that is known"
    )
    expected: Annotated[int, Field(ge=0)] | Literal["*"] | Missing = Field(
        default=None, description="With version-conflict and precondition-failed: the version that was expected"
    )
    current: Annotated[int, Field(ge=0)] | Missing = Field(
        default=None, description="With the same: the version that the aggregate has"
    )


class OperationProblem(Sent):
    """A problem (RFC 9457) under the gateway's own prefix."""

    title: Literal[
        "Bad Request",
        "Unauthorized",
        "Forbidden",
        "Not Found",
        "Method Not Allowed",
        "Request Timeout",
        "Conflict",
        "Content Too Large",
        "Record Unreadable",
        "Cache Unavailable",
        "Database Unavailable",
    ]
    status: Literal[400, 401, 403, 404, 405, 408, 409, 413, 500, 503]
    detail: str | Missing = None
    error: ErrorMember
    request_id: RequestId
    resolution: Literal["absent", "in-flight", "settled", "other-attempt"] | Missing = Field(
        default=None, description="Why nothing was written"
    )
    code: Literal["record-unreadable"] | Missing = None
    record: str | Missing = Field(default=None, description="The id of the record that can't be read")

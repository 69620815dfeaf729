"""Every problem that oncegate answers with: its status and all of its words, in one table. Descriptions read it, too."""
# Compiled: docs/decisions/0012-compiled.md

from dataclasses import dataclass
from typing import Final

INVALID_REQUEST: Final = "invalid_request_error"
IDEMPOTENCY: Final = "idempotency_error"
FAULT: Final = "api_error"


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """A problem's status, and all of its words.

    ``meaning`` is for descriptions of the API. ``detail`` is what one says that has no words of its own; ``passing``: the same
    where the request is not under enforcement. ``unless``: when ``retryable`` is otherwise, as the documentation says it.
    """

    status: int
    title: str
    meaning: str
    retryable: bool
    error_type: str
    """The ``type`` for SDKs that look for a member ``error``: theirs are the three above."""
    retry_after: bool = False
    """Whether time alone may change the answer: layers that retry every 409 go by it. Never where ``retryable`` may be false."""
    unless: str = ""
    detail: str = ""
    passing: str = ""


KINDS: dict[str, ProblemKind] = {
    # 400, 409 and 422 and the first two titles are the draft's, section 2.7.
    "key-missing": ProblemKind(
        400,
        "Idempotency-Key is missing",
        "The route requires a key and the request has none.",
        retryable=False,
        error_type=IDEMPOTENCY,
    ),
    "key-invalid": ProblemKind(
        400,
        "Idempotency-Key is invalid",
        "The key is empty, too long, malformed, given twice, of another form than the route wants, or differs between the header "
        "and an alias.",
        retryable=False,
        error_type=IDEMPOTENCY,
    ),
    "aggregate-invalid": ProblemKind(
        400,
        "The aggregate can't be told",
        "The route numbers its commands by aggregate, and the request doesn't say which one it is about.",
        retryable=False,
        error_type=INVALID_REQUEST,
    ),
    "version-invalid": ProblemKind(
        400,
        "The expected version is invalid",
        "What says which version is expected is malformed, or there is more than one such field.",
        retryable=False,
        error_type=INVALID_REQUEST,
    ),
    "caller-missing": ProblemKind(
        401,
        "The caller is not identified",
        "The route needs to know its caller and none of the scope's headers is there.",
        retryable=False,
        error_type=INVALID_REQUEST,
    ),
    "caller-invalid": ProblemKind(
        401,
        "The caller's token does not hold",
        "The token that names the caller is expired, forged, malformed, or somebody else's.",
        retryable=False,
        error_type=INVALID_REQUEST,
    ),
    "request-timeout": ProblemKind(
        408,
        "The request did not arrive in time",
        "The body did not arrive in time. Nothing was executed.",
        retryable=True,
        error_type=INVALID_REQUEST,
    ),
    "key-reused": ProblemKind(
        422,
        "Idempotency-Key is already used",
        "The key was used for another method, path, query or payload.",
        retryable=False,
        error_type=IDEMPOTENCY,
        detail="This key was used for a request with another method, path, query or payload: use a new key.",
    ),
    "in-flight": ProblemKind(
        409,
        "A request is outstanding for this Idempotency-Key",
        "The first request with this key is still being executed.",
        retryable=True,
        error_type=IDEMPOTENCY,
        retry_after=True,
        detail="The first request with this key is still being executed: try again later, or send Prefer: wait.",
    ),
    "duplicate": ProblemKind(
        409,
        "A request with this Idempotency-Key was already processed",
        "An error was asked for in place of a replay, or the result is too large to be replayed.",
        retryable=False,
        error_type=IDEMPOTENCY,
        detail="A request with this key was already processed: its result is in original_result.",
    ),
    "outcome-unknown": ProblemKind(
        409,
        "The outcome of an earlier request is unknown",
        "An earlier attempt may or may not have been executed, and the policy is not to try again.",
        retryable=False,
        error_type=IDEMPOTENCY,
        detail="An earlier request with this key may or may not have been executed: find out before sending another.",
    ),
    "version-conflict": ProblemKind(
        409,
        "The aggregate has another version",
        "The aggregate has another version than Expected-Version says. Nothing was accepted.",
        retryable=False,
        error_type=INVALID_REQUEST,
    ),
    "precondition-failed": ProblemKind(
        412,
        "The aggregate has another version",
        "The aggregate has another version than If-Match or If-None-Match says. Nothing was accepted.",
        retryable=False,
        error_type=INVALID_REQUEST,
    ),
    "too-many-keys": ProblemKind(
        429,
        "The caller sends too much at once",
        "The caller has as many attempts running, or has used as many new keys, as it may. Nothing was claimed.",
        retryable=True,
        error_type=INVALID_REQUEST,
        retry_after=True,
    ),
    "payload-too-large": ProblemKind(
        413,
        "The request is too large",
        "The body is over max_request_body.",
        retryable=False,
        error_type=INVALID_REQUEST,
    ),
    "precondition-required": ProblemKind(
        428,
        "The expected version is missing",
        "The route requires the version that is expected.",
        retryable=False,
        error_type=INVALID_REQUEST,
    ),
    "record-unreadable": ProblemKind(
        500,
        "The record of this Idempotency-Key can't be read",
        "The record is damaged, or of a newer version.",
        retryable=False,
        error_type=FAULT,
        detail="The record of this key is damaged, or of a newer version of oncegate.",
    ),
    "caller-failed": ProblemKind(
        500,
        "The caller can't be determined",
        "An app's own function that names its callers failed. Nothing was claimed.",
        retryable=False,
        error_type=FAULT,
    ),
    "gateway-failed": ProblemKind(
        500,
        "The gateway failed",
        (
            "A fault of the gateway's own: the request may have been executed. retryable is true where "
            "on_unknown is retry, and for an idempotent method that was not enforced."
        ),
        retryable=False,
        error_type=FAULT,
        unless='yes under `on_unknown = "retry"`',
        detail="The gateway failed: the outcome of the request is unknown.",
        passing="The gateway failed; the request may have been processed.",
    ),
    "upgrade-unsupported": ProblemKind(
        501,
        "Upgrade is not supported",
        "Upgrade (WebSocket) is not forwarded.",
        retryable=False,
        error_type=INVALID_REQUEST,
        detail="This gateway forwards plain HTTP requests only.",
    ),
    "upstream-unreachable": ProblemKind(
        502,
        "The upstream can't be reached",
        "No connection: nothing was sent, and the key is free.",
        retryable=True,
        error_type=FAULT,
        detail="No connection to the upstream. Nothing was executed; the key is free.",
        passing="No connection to the upstream: nothing was sent.",
    ),
    "upstream-failed": ProblemKind(
        502,
        "The upstream did not answer",
        "The connection broke after the request was sent. retryable is true where on_unknown is retry.",
        retryable=False,
        error_type=FAULT,
        unless='yes under `on_unknown = "retry"`',
        detail="The connection broke after the request was sent: its outcome is unknown.",
        passing="The connection to the upstream broke after the request was sent; it may have been processed.",
    ),
    "cache-unavailable": ProblemKind(
        503,
        "The record cache is unavailable",
        "The record cache can't be reached. Nothing was forwarded.",
        retryable=True,
        error_type=FAULT,
        retry_after=True,
        detail="The record cache can't be reached. Nothing was executed.",
    ),
    "caller-unverifiable": ProblemKind(
        503,
        "The caller's token can't be verified now",
        "The keys that the caller's token is verified with can't be had. Nothing was claimed.",
        retryable=True,
        error_type=FAULT,
        retry_after=True,
    ),
    "overloaded": ProblemKind(
        503,
        "Too many requests are being executed",
        "Too many attempts are in flight. Nothing was claimed.",
        retryable=True,
        error_type=FAULT,
        retry_after=True,
    ),
    "upstream-timeout": ProblemKind(
        504,
        "The upstream did not answer in time",
        (
            "No response in time; the attempt goes on. retryable is false for what was not enforced and is not "
            "idempotent."
        ),
        retryable=True,
        error_type=FAULT,
        unless="no for a request that was not enforced and is not idempotent",
        detail="The upstream has not answered yet; the attempt goes on: ask again with the same key.",
        passing="The upstream did not answer in time; the request may have been processed.",
    ),
}
"""Every problem that oncegate answers with, by its slug. Public: a change here is a change of the contract."""

"""``commands/ID`` over HTTP: an asynchronous command's status, for the caller that submitted it and for operators.

Strategy. A command's id ends with the digest of its caller's scope: a request whose headers give this digest is that
caller's, which is known before anything is read. All others get the same 404 as for a command that does not exist.
"""

import asyncio
import hmac
import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Annotated, Any

from fastapi import APIRouter, Header, HTTPException, Path, Request, Response

from oncegate.app.operators.audit import Author
from oncegate.app.operators.audit_lines import AuditLines
from oncegate.app.operators.pages.bearer import Bearer
from oncegate.app.operators.pages.described.command import CommandStatus
from oncegate.app.operators.pages.described.document import PATTERN, Missing
from oncegate.app.operators.pages.reply import NO_CACHE, answer, document, problem, unavailable
from oncegate.app.operators.showing import report_response
from oncegate.cache.backoff import Backoff
from oncegate.cache.errors import CacheError, RecordUnreadable
from oncegate.cache.record import Record, State, StoredResponse
from oncegate.cache.store import Cache
from oncegate.middleware.consumers.gate import is_dead
from oncegate.middleware.http.asgi import Receive, Scope
from oncegate.middleware.outcome.problems import INVALID_TOKEN, original_result
from oncegate.middleware.outcome.results import read_error
from oncegate.middleware.rules.errors import CallerInvalid, CallerUnverifiable, Refusal
from oncegate.middleware.rules.keys.digests import Digests
from oncegate.middleware.rules.keys.key import (
    RECORD_ID,
    Fields,
    caller_of_id,
    execution_key,
    key_of_id,
    pick,
    scope_digests,
    scope_parts,
)
from oncegate.middleware.rules.policy import Policy
from oncegate.middleware.rules.prefer import wanted_wait
from oncegate.middleware.tokens.verifier import Tokens

log = logging.getLogger("oncegate.commands")

MAX_WAITERS = 1000
"""Requests of a process that wait for a command's end; more are answered at once."""
_PAUSES = Backoff(0.0025, 1.25, least=0.6, factor=1.5)
_NO_COMMAND = "No such command, or not yours."

_CHALLENGE = {"WWW-Authenticate": {"required": True, "schema": {"const": INVALID_TOKEN[1].decode()}}}

router = APIRouter(tags=["callers"])


@router.get(
    "/commands/{id}",
    response_model=CommandStatus,
    response_description="How it stands.",
    responses={200: {"headers": {"Preference-Applied": {"schema": {"type": "string", "pattern": "^wait=[0-9]+$"}}}}}
    | answer(401, "The token that names the caller does not hold.", _CHALLENGE)
    | answer(404, "There is no such command, or it is somebody else's.")
    | answer(500, "A record of it is damaged, or of a newer version.")
    | NO_CACHE,
)
async def show_command(
    request: Request,
    identifier: Annotated[str, Path(alias="id", description="As Location names it", json_schema_extra=PATTERN)],
    _: Annotated[  # described; `wanted_wait` reads all of its lines
        str | Missing, Header(alias="Prefer", description="wait=N: up to N seconds for the command's end")
    ] = None,
) -> Response:
    """The state of an asynchronous command. For the caller that submitted it, and for operators.

    The caller is known by the headers of the route's scope (by default Authorization), which are to be sent as with the
    submission; where the scope names a token's claims, by any token of the same caller. With [cors], OPTIONS is answered here
    too: a preflight.
    """
    statuses: CommandStatuses = request.app.state.statuses
    try:
        return await statuses.show(request.scope, request.receive, identifier)
    except CallerInvalid as error:
        name, value = INVALID_TOKEN
        return problem(401, str(error), headers={name.decode(): value.decode()})
    except CallerUnverifiable as error:
        return unavailable(str(error))
    except RecordUnreadable:
        raise
    except CacheError as error:
        log.warning("record %s: its status can't be shown: %s", identifier, error)
        return unavailable("The record cache can't be reached.")


class CommandStatuses:
    """The statuses of the commands in ``namespace``.

    ``policies`` are those of the asynchronous routes: their scopes identify a caller. ``consumers`` are those whose processing
    is shown. ``rules`` bounds ``Prefer: wait``. ``operators`` may see all commands; a result
    that they see is reported to ``audit``. While ``draining()`` is true, no request is
    kept waiting.
    """

    def __init__(
        self,
        cache: Cache,
        namespace: str,
        *,
        policies: Sequence[Policy],
        consumers: Sequence[str],
        rules: Policy,
        digests: Digests,
        operators: Bearer | None,
        audit: AuditLines | None,
        tokens: Tokens | None,
        draining: Callable[[], bool],
    ) -> None:
        self._cache = cache
        self._namespace = namespace
        self._scopes = tuple({policy.scope_names: policy for policy in policies}.values())
        self._tokens = tokens
        self._consumers = tuple(dict.fromkeys(consumers))
        self._rules = rules
        self._digests = digests
        self._nameless = scope_digests(None, digests)
        self._operators = operators
        self._audit = audit
        self._draining = draining
        self.waiters = 0

    @property
    def caller_headers(self) -> list[str]:
        """The headers by which callers are known."""
        return [*dict.fromkeys(name.decode() for policy in self._scopes for name in policy.caller_headers)]

    async def show(self, scope: Scope, receive: Receive, identifier: str) -> Response:
        """The status, to whom it belongs. Raises ``HTTPException`` (404), `CacheError`, and where a token would have to say who
        the caller is and doesn't hold, `CallerInvalid` or `CallerUnverifiable`."""
        operator = self._operators.brought(scope) if self._operators is not None else None
        if not RECORD_ID.fullmatch(identifier) or not (operator or await self._may_see(scope, identifier)):
            raise HTTPException(404, _NO_COMMAND)
        key = key_of_id(self._namespace, identifier)
        claim = await self._cache.get(key)
        submission = claim.record if claim is not None else None
        if submission is None and caller_of_id(identifier) in self._nameless:
            raise HTTPException(404, _NO_COMMAND)  # what a consumer did for no caller may never have been a request
        execution = await self._execution(key, submission)
        if not is_command(submission, execution):
            raise HTTPException(404, _NO_COMMAND)
        wait = wanted_wait(pick(scope["headers"], self._rules.wanted), self._rules)
        applied = {}
        if wait > 0 and not is_over(submission, execution) and self.waiters < MAX_WAITERS:
            applied["preference-applied"] = f"wait={wait:.0f}"
            self.waiters += 1
            try:
                execution = await self._ended(key, submission, receive, monotonic() + wait) or execution
            finally:
                self.waiters -= 1
        members = describe(identifier, submission, execution)
        if operator is not None and ("result" in members or "status" in members.get("error", {})):
            await report_response(self._audit, Author(operator.name), identifier)
        return document(members, headers=applied)

    async def _may_see(self, scope: Scope, identifier: str) -> bool:
        """Whether it is the caller's, by its headers."""
        given = caller_of_id(identifier)
        refusal: Refusal | None = None
        for policy in self._scopes:
            fields = pick(scope["headers"], frozenset(policy.caller_headers))
            try:
                await self._add_claims(fields, policy)
            except Refusal as error:
                refusal = error
                continue
            own = scope_digests(scope_parts(fields, policy.scope_names), self._digests)
            if any(hmac.compare_digest(given, digest) for digest in own):
                return True
        if self._operators is not None:
            self._operators.refuse_guess(scope)
        if refusal is not None:
            raise refusal
        return False

    async def _add_claims(self, fields: Fields, policy: Policy) -> None:
        if self._tokens is None or not policy.claims or self._tokens.add_claims(fields, policy.claims):
            return
        self._tokens.add_claims(fields, policy.claims, waited=await self._tokens.refreshed())

    async def _execution(self, key: str, submission: Record | None) -> Record | None:
        """The execution record, of whichever consumer has one; that of this payload first."""
        claims = await asyncio.gather(*[self._cache.get(execution_key(key, name)) for name in self._consumers])
        records = [claim.record for claim in claims if claim is not None]
        records.sort(key=lambda record: is_mismatch(submission, record))
        return records[0] if records else None

    async def _ended(self, key: str, submission: Record | None, receive: Receive, until: float) -> Record | None:
        """The execution record once it is over, or as it is when time is up, the client has left, or the gateway stops."""
        left = asyncio.create_task(_disconnect(receive))
        execution = None
        tries = 0
        try:
            while not left.done() and not self._draining() and (remaining := until - monotonic()) > 0:
                tries += 1
                await asyncio.wait([left], timeout=min(remaining, _PAUSES.pause(tries)))
                execution = await self._execution(key, submission)
                if is_over(submission, execution):
                    break
        finally:
            left.cancel()
        return execution


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


_DETAILS = {
    "failed": "The last attempt failed. The command will be tried again.",
    "dead-lettered": "The last attempt failed and no other will follow, unless an operator retries the command.",
    "mismatch": "Another payload was submitted under the same key and is processed in this one's place: this one never is. "
    "Submit it with a new key.",
    "unknown": "The last attempt ended without an outcome, as when its process dies: nobody knows what it has done. "
    "The command will be taken over and tried again.",
}


def is_command(submission: Record | None, execution: Record | None) -> bool:
    """Whether the records are those of a command, not of a request that the gateway executed itself.

    It was accepted, or a consumer has begun with it. The submission's record may have gone before the execution's.
    """
    if submission is None:
        return execution is not None
    return submission.submission and (submission.state is State.SUCCEEDED or execution is not None)


def is_mismatch(submission: Record | None, execution: Record | None) -> bool:
    """Whether the consumer has another payload under this key, so that it puts this one aside.

    As where a submission reached the stream without being accepted, and then another one was; or where the submission's record
    had gone before the execution's.
    """
    return submission is not None and execution is not None and submission.fingerprint != execution.fingerprint


def is_over(submission: Record | None, execution: Record | None) -> bool:
    """Whether the status is final, unless an operator steps in."""
    if execution is None:
        return False
    return is_mismatch(submission, execution) or execution.state is State.SUCCEEDED or is_dead(execution)


def describe(identifier: str, submission: Record | None, execution: Record | None) -> dict[str, Any]:
    """The members of a command's status. ``attempt`` is the number of the last attempt that was begun."""
    mismatch = is_mismatch(submission, execution)
    status = "dead-lettered" if mismatch else _status(execution)
    members: dict[str, Any] = {"command": identifier, "status": status}
    position = _member(submission.response, "position") if submission else None
    if position is not None:
        members["position"] = position
    sequence = read_error(submission.response).get("sequence") if submission else None
    if isinstance(sequence, int):
        members["sequence"] = sequence
    if mismatch:
        error = {"type": "Mismatch", "message": "The key was used for another payload."}
        return members | {"detail": _DETAILS["mismatch"], "error": error}
    if execution is None:
        return members
    members["attempt"] = execution.attempt
    if status in _DETAILS:
        members["detail"] = _DETAILS[status]
    if execution.state is State.SUCCEEDED:
        members["result"] = original_result(execution.response)
    elif execution.state is State.FAILED:
        members["error"] = _error(execution.response)
    return members


def _status(execution: Record | None) -> str:
    if execution is None:
        return "accepted"
    if execution.state is State.FAILED and is_dead(execution):
        return "dead-lettered"
    return execution.state.value


def _error(response: StoredResponse | None) -> dict[str, Any]:
    """Type and text of what was raised; what an operator or another consumer wrote, as results are given."""
    kind, message = _member(response, "type"), _member(response, "message")
    return original_result(response) if kind is None or message is None else {"type": kind, "message": message}


def _member(response: StoredResponse | None, name: str) -> str | None:
    value = read_error(response).get(name)
    return value if isinstance(value, str) else None

"""``commands/ID`` over HTTP: an asynchronous command's status, for the caller that submitted it and for operators.

Strategy. A command's id ends with the digest of its caller's scope: a request whose headers give this digest is that
caller's, which is known before anything is read. All others get the same 404 as for a command that does not exist.
"""

import asyncio
import hmac
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic

from oncegate.app.commands.status import describe, is_command, is_mismatch, is_over
from oncegate.app.operators.bearer import Bearer
from oncegate.app.operators.records_page import unreadable
from oncegate.app.operators.reply import Reply, method_not_allowed, problem, told
from oncegate.cache.backoff import Backoff
from oncegate.cache.errors import CacheError, RecordUnreadable
from oncegate.cache.record import Record
from oncegate.cache.store import Cache
from oncegate.middleware.http.asgi import Receive, Scope
from oncegate.middleware.http.cors import CrossOrigin
from oncegate.middleware.http.keyed_request import wanted_wait
from oncegate.middleware.rules.key import RECORD_ID, execution_key, pick, scope_digest, scope_parts
from oncegate.middleware.rules.policy import Policy

log = logging.getLogger("oncegate.commands")

MAX_WAITERS = 1000
"""Requests of a process that wait for a command's end; more are answered at once."""
_PAUSES = Backoff(0.0025, 1.25, least=0.6, factor=1.5)
_NAMELESS = scope_digest(None)
_NO_COMMAND = problem(404, "Not Found", "No such command, or not yours.")


class CommandsPage:
    """Answers requests below ``commands/``.

    ``policies`` are those of the asynchronous routes: their scopes identify a caller. ``consumers`` are those whose processing
    is shown. ``rules`` bounds ``Prefer: wait``. ``operators`` may see all commands. While ``draining()`` is true, no request is
    kept waiting. ``cors`` says which scripts may read the answers.
    """

    def __init__(
        self,
        cache: Cache,
        namespace: str,
        *,
        policies: Sequence[Policy],
        consumers: Sequence[str],
        rules: Policy,
        operators: Bearer | None = None,
        draining: Callable[[], bool] = lambda: False,
        cors: CrossOrigin | None = None,
    ) -> None:
        self._cache = cache
        self._namespace = namespace
        self._scopes = tuple(dict.fromkeys(policy.scope_names for policy in policies))
        self._consumers = tuple(dict.fromkeys(consumers))
        self._rules = rules
        self._operators = operators
        self._draining = draining
        self._cors = cors
        self._waiters = 0

    async def __call__(self, scope: Scope, receive: Receive, identifier: str) -> Reply:
        """The answer to one request. A script in a browser may read it where ``cors`` says so."""
        cors = self._cors
        if cors is None:
            return await self._answer(scope, receive, identifier)
        if scope["method"] == "OPTIONS":  # below the prefix, nothing else answers it
            allowed = [*dict.fromkeys(name.decode() for names in self._scopes for name in names), "prefer"]
            return Reply(
                200, b"", headers=tuple(cors.preflight(scope["headers"], methods="GET, HEAD", allowed=allowed))
            )
        reply = await self._answer(scope, receive, identifier)
        return replace(reply, headers=(*reply.headers, *cors.headers(scope["headers"])))

    async def _answer(self, scope: Scope, receive: Receive, identifier: str) -> Reply:
        if scope["method"] not in ("GET", "HEAD"):
            return method_not_allowed("GET, HEAD")
        if not RECORD_ID.fullmatch(identifier) or not self._may_see(scope, identifier):
            return _NO_COMMAND
        try:
            return await self._tell(scope, receive, identifier)
        except RecordUnreadable as error:
            return unreadable(identifier, error)
        except CacheError as error:
            log.warning("record %s: its status can't be told: %s", identifier, error)
            return problem(503, "Cache Unavailable", "The record cache can't be reached.", (b"retry-after", b"1"))

    def _may_see(self, scope: Scope, identifier: str) -> bool:
        if self._operators is not None and self._operators.is_brought(scope):
            return True
        given = identifier.partition(":")[2]
        own = [scope_digest(scope_parts(pick(scope["headers"], frozenset(names)), names)) for names in self._scopes]
        return any(hmac.compare_digest(given, digest) for digest in own)

    async def _tell(self, scope: Scope, receive: Receive, identifier: str) -> Reply:
        key = f"{self._namespace}:{identifier}"
        claim = await self._cache.get(key)
        submission = claim.record if claim is not None else None
        if submission is None and identifier.endswith(_NAMELESS):
            return _NO_COMMAND  # what a consumer did under a key without a caller may never have been a request
        execution = await self._execution(key, submission)
        if not is_command(submission, execution):
            return _NO_COMMAND
        wait = wanted_wait(pick(scope["headers"], self._rules.wanted), self._rules)
        waited = False
        if wait > 0 and not is_over(submission, execution) and self._waiters < MAX_WAITERS:
            waited = True
            self._waiters += 1
            try:
                execution = await self._ended(key, submission, receive, monotonic() + wait) or execution
            finally:
                self._waiters -= 1
        reply = told(describe(identifier, submission, execution))
        return Reply(200, reply.body, headers=((b"preference-applied", b"wait=%d" % wait),)) if waited else reply

    async def _execution(self, key: str, submission: Record | None) -> Record | None:
        """The execution record, of whichever consumer has one; that of this payload first."""
        claims = await asyncio.gather(*[self._cache.get(execution_key(key, name)) for name in self._consumers])
        records = [claim.record for claim in claims if claim is not None]
        records.sort(key=lambda record: is_mismatch(submission, record))
        return records[0] if records else None

    async def _ended(self, key: str, submission: Record | None, receive: Receive, until: float) -> Record | None:
        """The execution record once it is over, or as it is when time is up, the client has left, or the gateway stops."""
        left = asyncio.create_task(_disconnect(receive))
        looks = 0
        execution = None
        try:
            while not left.done() and not self._draining() and (remaining := until - monotonic()) > 0:
                looks += 1
                await asyncio.wait([left], timeout=min(remaining, _PAUSES.pause(looks)))
                execution = await self._execution(key, submission)
                if is_over(submission, execution):
                    break
        finally:
            left.cancel()
        return execution


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""`IdempotencyMiddleware`, pure ASGI: the public class. Its requests go on to `oncegate.middleware.http.enter`."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from oncegate.cache.errors import CacheError
from oncegate.cache.open import given_cache
from oncegate.cache.seconds import given_seconds
from oncegate.cache.store import Cache
from oncegate.middleware.admission.admission import Admissions
from oncegate.middleware.admission.buffers import MAX_BUFFERED, MAX_UNREAD, Buffered, Unread
from oncegate.middleware.admission.limits.callers import CallerLimits
from oncegate.middleware.admission.observe import Observation, Observe, Watch
from oncegate.middleware.admission.tracing import TracesRequests
from oncegate.middleware.http.apps.advice import advice, endpoints, unmatched
from oncegate.middleware.http.apps.functions import Caller, Redact
from oncegate.middleware.http.asgi import App, Message, Receive, Scope, Send
from oncegate.middleware.http.cors import CrossOrigin
from oncegate.middleware.http.door import HttpDoor, Observing
from oncegate.middleware.http.enter import enter
from oncegate.middleware.http.observed.shadow import shadow_of
from oncegate.middleware.rules.checks.address_check import address_rules, check_addresses
from oncegate.middleware.rules.checks.arguments import (
    check_app,
    check_callable,
    check_counts,
    check_function,
    check_watch,
    given_namespace,
    given_routes,
    given_settings,
    named_only,
)
from oncegate.middleware.rules.checks.route_advice import route_advice
from oncegate.middleware.rules.checks.secret_check import OtherSecret
from oncegate.middleware.rules.keys.digests import Secrets, given_digests
from oncegate.middleware.rules.policies import Policies
from oncegate.middleware.rules.policy import TOKEN_HEADER
from oncegate.middleware.rules.settings import IdempotencySettings, Route, check_enforce
from oncegate.middleware.tokens.settings import JwtSettings
from oncegate.middleware.tokens.verifier import open_tokens

log = logging.getLogger("oncegate.http")

_NEEDS_ASYNCIO: Final = "IdempotencyMiddleware needs asyncio: use a server's asyncio worker (hypercorn -k asyncio)"

_BY_NAME: Final = (
    "IdempotencyMiddleware takes the app by place, and all else by name: IdempotencyMiddleware(app, cache=...), or "
    "app.add_middleware(IdempotencyMiddleware, cache=...)"
)


class IdempotencyMiddleware:
    """An ASGI app around yours that enforces idempotency keys.

    - ``cache``: a `Cache`, or the URL of one (see `open_cache`), which is then closed when the lifespan shuts down.
    - ``submit``: an ASGI app that takes the requests that are to be processed later: it accepts the command (see
      `oncegate.middleware.http.asgi.Submission`), answers 202, or raises `oncegate.middleware.outcome.errors.NotAccepted`.
    - ``settings``: the rules for all requests; ``routes`` are paths where others hold.
    - ``namespace``: keeps services that share a cache apart; no colon in it.
    - ``secret``: keys the digests of keys, callers and payloads; 32 bytes or more; a list of two while one replaces the other.
    - ``max_in_flight``: how many attempts this process runs at once.
    - ``max_in_flight_per_caller``: how many of these may be one caller's; 0: no limit.
    - ``new_keys_per_caller``: how many new keys one caller may use, as ``"600/m"`` (per s, m or h); empty: no limit.
    - ``max_buffered``: bytes of request bodies that wait to be admitted.
    - ``max_unread``: bytes of responses that the server has not taken yet, because their readers are slow.
    - ``body_timeout``: seconds for an enforced request's body to arrive, and for a client to take more of a response that is
      too large to keep.
    - ``drain_timeout``: seconds that the lifespan's shutdown waits for attempts.
    - ``date_header``: adds a Date to answers made here; for servers that add none.
    - ``cors``: lets scripts in browsers read answers made here; for apps without a CORS middleware around this one.
    - ``observe``: called for each answer; ``watch`` is notified of attempts' events.
    - ``caller``: a function that names who sent a request with a key, by its ASGI scope; it takes the place of ``scope``. It
      gives a ``str``, ``int`` or ``UUID``. The request is refused on ``None`` or ``""`` (``caller-missing``) and on an error
      (``caller-failed``).
    - ``jwt``: how the token is verified whose claims ``scope`` names.
    - ``redact``: a function of the ASGI scope and a `StoredResponse` that gives what is kept of a response. Where it gives
      ``None``, or fails, a retry gets the problem ``duplicate`` without the response.
    - ``tracing``: traces requests and their attempts: an `oncegate.otel.Tracing`.

    Two of these may stand one behind the other, on the same store and namespace: the inner one leaves alone what the outer one
    enforces.

    Raises ``TypeError`` for an argument of another kind; ``ValueError`` for a namespace, limit or URL that can't be, an
    asynchronous route without ``submit``, a claim in a scope without ``jwt``, and a file of keys that can't be read; pydantic's
    ``ValidationError`` for a route's wrong override.
    """

    @named_only(2, _BY_NAME)
    def __init__(
        self,
        app: App,
        *,
        cache: Cache | str,
        submit: App | None = None,
        settings: IdempotencySettings | None = None,
        routes: Sequence[Route] = (),
        namespace: str = "default",
        secret: Secrets = None,
        max_in_flight: int = 1000,
        max_in_flight_per_caller: int = 0,
        new_keys_per_caller: str = "",
        max_buffered: int = MAX_BUFFERED,
        max_unread: int = MAX_UNREAD,
        body_timeout: float = 30.0,
        drain_timeout: float = 30.0,
        date_header: bool = False,
        cors: CrossOrigin | None = None,
        observe: Observe | None = None,
        watch: Watch | None = None,
        caller: Caller | None = None,
        jwt: JwtSettings | None = None,
        redact: Redact | None = None,
        tracing: TracesRequests | None = None,
    ) -> None:
        settings, routes = given_settings(settings, IdempotencySettings), given_routes(routes)
        check_app(app)
        check_callable("submit", submit, "an ASGI app that accepts commands", optional=True)
        check_callable("observe", observe, "a function of an Observation", optional=True)
        check_watch(watch)
        check_function("caller", caller, "a function of the ASGI scope")
        check_function("redact", redact, "a function of the ASGI scope and a StoredResponse")
        if caller is not None and (settings.scope is not None or any(each.scope is not None for each in routes)):
            raise ValueError("caller takes the place of scope: give one of them")
        body_timeout, drain_timeout = given_seconds(body_timeout=body_timeout, drain_timeout=drain_timeout)
        check_counts(
            max_in_flight=max_in_flight,
            max_in_flight_per_caller=max_in_flight_per_caller,
            max_buffered=max_buffered,
            max_unread=max_unread,
        )
        least = min(max_in_flight, max_buffered, max_unread, max_in_flight_per_caller + 1)
        if least < 1 or body_timeout <= 0 or drain_timeout < 0:
            raise ValueError(
                "max_in_flight, max_buffered, max_unread and body_timeout must be above 0,"
                " max_in_flight_per_caller and drain_timeout not below"
            )
        if submit is None and any(route.mode != "sync" for route in routes):
            raise ValueError("a route's mode is sync where nothing takes submissions: give submit")
        for number, route in enumerate(routes):
            check_enforce(f"routes.{number}", route.mode, route.settings(settings))
        for line in route_advice(routes):
            log.warning("%s", line)
        self.app = app
        tokens = open_tokens(jwt, settings, routes)
        opened = given_cache(cache)
        self._own_cache = opened if isinstance(cache, str) else None
        limited = max_in_flight_per_caller > 0 or new_keys_per_caller
        self.admissions = Admissions(
            opened,
            max_in_flight=max_in_flight,
            watch=watch,
            callers=CallerLimits(max_in_flight_per_caller, new_keys_per_caller) if limited else None,
        )
        self.door = HttpDoor(
            app=app,
            submit=submit or app,  # without one, no route asks for it
            policies=Policies(settings, routes, jwt.header if jwt is not None else TOKEN_HEADER),
            admissions=self.admissions,
            namespace=given_namespace(namespace),
            digests=given_digests(secret),
            body_timeout=body_timeout,
            buffered=Buffered(max_buffered, self.admissions.in_flight.shared.watch),
            unread=Unread(max_unread, self.admissions.in_flight.shared.watch),
            date_header=date_header,
            cors=cors,
            observe=None if observe is None else _without_request(observe),
            caller=caller,
            tokens=tokens,
            redact=redact,
            warn_of_signed_callers=caller is None and settings.scope is None,
            warn_of_cookies=True,
            traces=None if tracing is None else tracing.requests(opened),
        )
        if self.door.policies.observes:
            self.door.shadow = shadow_of(self.door)
        self._drain_timeout = drain_timeout
        self._rules = settings, tuple(routes)
        self._is_advised = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI 3."""
        if scope["type"] == "http":
            if not self._is_advised:
                self._advise(scope)
            await enter(self.door, scope, receive, send)
            return
        if scope["type"] == "lifespan":
            if not _on_asyncio():
                await receive()
                await send({"type": "lifespan.startup.failed", "message": _NEEDS_ASYNCIO})
                return
            first = await receive()
            if (refusal := await self._refusal()) is not None:
                await send({"type": "lifespan.startup.failed", "message": refusal})
                return
            receive = self._draining(_again(first, receive))
        await self.app(scope, receive, send)

    def _advise(self, scope: Scope) -> None:
        """Log once what the app's own routes show of a mistake; by the first request they are all there."""
        self._is_advised = True
        try:
            found = [*endpoints(scope.get("app"))]
            for line in unmatched(found, *self._rules):
                log.error("%s", line)
            for line in advice(found, self.door.policies):
                log.warning("%s", line)
        except Exception as error:  # noqa: BLE001 - whatever another framework's routes are; advice must not fail a request
            log.debug("the app's routes can't be read: %s", type(error).__name__)

    async def _refusal(self) -> str | None:
        """Why the app must not start: its cache's records are under another secret. A cache that is away can't tell."""
        try:
            rules = address_rules(self.door.policies, by_function=self.door.caller is not None)
            cache = self.admissions.in_flight.shared.cache
            for line in await check_addresses(cache, self.door.namespace, self.door.digests, rules):
                log.warning("%s", line)
        except OtherSecret as error:
            log.critical("%s", error)
            return str(error)
        except CacheError as error:
            log.warning("whether the cache's records are under this secret is not known: %s", error)
        return None

    def _draining(self, receive: Receive) -> Receive:
        async def receive_after_drain() -> Message:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.admissions.in_flight.closing = False
                if self.door.tokens is not None:
                    self.door.tokens.source.refresh()
            elif message["type"] == "lifespan.shutdown":
                await self.drain(self._drain_timeout)
                if self._own_cache is not None:
                    await self._own_cache.close()
            return message

        return receive_after_drain

    async def drain(self, timeout: float) -> int:
        """Wait at most ``timeout`` seconds for attempts and for outcomes not yet recorded; how many attempts were left."""
        left = await self.admissions.in_flight.drain(timeout)
        if left:
            log.warning("%d attempts did not end in time: they read unknown once their leases lapse", left)
        return left


def _without_request(observe: Observe) -> Observing:
    def observing(observation: Observation, _: object) -> None:
        observe(observation)

    return observing


def _again(first: Message, receive: Receive) -> Receive:
    """``receive``, which gives ``first`` before all else."""
    left = [first]

    async def receive_again() -> Message:
        return left.pop() if left else await receive()

    return receive_again


def _on_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # on trio, for instance
        return False
    return True

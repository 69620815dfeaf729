"""The gateway that a process runs, and what takes its place when the configuration is read anew.

Strategy. A replacement is a whole gateway, made by the same function as the first one, beside what lasts: the cache, the
attempts in flight, the counts. Until it is installed it has changed nothing. To install it is to replace references, without
waiting: a request that has begun holds on to the gateway, the policy and the connections that it began with.
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oncegate.app.factory import create_gateway
from oncegate.app.gateway.gateway import Gateway
from oncegate.app.operators.reloading import Reload, Reloaded
from oncegate.app.policies import gateway_policies, labels_of
from oncegate.app.reload.changes import in_effect
from oncegate.app.server.served import Served
from oncegate.app.settings.advice import settings_advice
from oncegate.app.settings.certificates import ListenerTls
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.sources import ConfigurationError
from oncegate.app.settings.shown.digest import settings_digest
from oncegate.app.upstream.forward import Forwarder
from oncegate.cache.errors import CacheError
from oncegate.cache.store import KeepsSecretCheck
from oncegate.middleware.http.asgi import Receive, Scope, Send
from oncegate.middleware.http.door import Observing
from oncegate.middleware.rules.checks.address_check import address_rules, moved_line, moved_rules
from oncegate.middleware.rules.checks.secret_check import is_under_another_secret, other_secret_line
from oncegate.middleware.tokens.key_set import UnusableKeys

log = logging.getLogger("oncegate.reload")

Read = Callable[[], GatewaySettings]
"""Reads command line, environment and files. Raises `ConfigurationError`."""
Prepare = Callable[[GatewaySettings], Callable[[], None]]
"""Makes what a configuration needs besides the gateway, and returns what puts that in place, which must not fail.

Raises `ConfigurationError` where it can't be made. It is called in a thread, in each process, and the parent of workers too.
"""


@dataclass(frozen=True, slots=True)
class NewSettings:
    """The settings that were read: ``settings`` can be in effect, those that ``wait`` need a restart."""

    settings: GatewaySettings
    wait: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A gateway that is ready to take another one's place; ``places`` puts in place what is prepared beside it."""

    settings: GatewaySettings
    gateway: Gateway
    places: Sequence[Callable[[], None]]


class Running:
    """A process's gateway and the ``settings`` in effect: the app of its server, for as long as that runs.

    ``read`` reads the configuration anew, ``None``: it is never reloaded. Each of ``parts`` prepares what else is to follow it;
    ``tls`` does, too.
    Raises `ConfigurationError`.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        admin_token: str | None = None,
        observe: Observing | None = None,
        read: Read | None = None,
        parts: Sequence[Prepare] = (),
        tls: ListenerTls | None = None,
    ) -> None:
        self.settings = settings
        self.reloads = read is not None
        self._read = read
        self._admin_token = admin_token
        self._observe = observe
        self.tls = tls
        """The TLS of the ports, if they have it; its certificate is read anew with all else."""
        self.parts = [*parts, *([] if tls is None else [tls.prepare])]
        """Where others register what follows the configuration, too; before workers are forked."""
        self.by: Reload | None = None
        """How this process has a reload done."""
        self.gateway = self._gateway(settings, None)
        self.served = Served(self.gateway)
        self.unread = self.gateway.unread
        self.access_log = self.gateway.access_log
        if self.access_log is not None:
            self.parts.append(self.access_log.lines.prepare)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI 3, for the lifespan: connections look at ``served``."""
        await self.gateway(scope, receive, send)

    @property
    def digest(self) -> str:
        """The digest of the configuration in effect."""
        return settings_digest(self.settings)

    async def reload(self) -> Reloaded:
        """Have the configuration read anew, in all processes."""
        if self.by is None:
            return Reloaded(self.digest, "the gateway is starting, or stopping")
        return await self.by()

    # -- prepared -----------------------------------------------------------------------------------------------------

    def read(self) -> NewSettings:
        """The configuration as it is written now. Raises `ConfigurationError` where it, or the way to it, is wrong."""
        if self._read is None:
            raise ConfigurationError("this gateway was started with settings that are written nowhere")
        return NewSettings(*in_effect(self.settings, self._read()))

    def build(self, settings: GatewaySettings) -> Candidate:
        """A replacement by ``settings``. Raises `ConfigurationError`."""
        gateway = self._gateway(settings, self.gateway)
        routes, submissions = labels_of(gateway_policies(settings))
        if not self.gateway.lasting.metrics.has_room(routes, submissions, routes[:-1]):
            raise ConfigurationError(
                "routes: more of them have come since the start than can be counted: a restart is needed"
            )
        return Candidate(settings, gateway, [prepare(settings) for prepare in self.parts])

    async def prepare(self, settings: GatewaySettings) -> Candidate:
        """A replacement that nothing can go wrong with any more, made while requests are served. Raises `ConfigurationError`."""
        replacement = await asyncio.to_thread(self.build, settings)
        tokens, cache = replacement.gateway.tokens, self.gateway.lasting.cache
        try:
            if tokens is not None and (self.gateway.tokens is None or settings.jwt != self.settings.jwt):
                await asyncio.to_thread(
                    tokens.source.fetch
                )  # else an issuer that is away would be in the way of all else
            other = await is_under_another_secret(cache, settings.namespace, settings.digests())
        except UnusableKeys as error:
            raise ConfigurationError(f"jwt: {error}") from None
        except CacheError as error:  # as at a start: what is known here was compared already
            log.warning("whether the cache's records are under this secret is not known: %s", error)
            other = False
        if other:
            raise ConfigurationError(f"cache: {other_secret_line(settings.namespace)}")
        await replacement.gateway.operations.load()
        return replacement

    def _gateway(self, settings: GatewaySettings, before: Gateway | None) -> Gateway:
        try:
            return create_gateway(
                settings,
                observe=self._observe,
                admin_token=self._admin_token,
                before=before,
                reload=self.reload if self.reloads else None,
                tls=self.tls,
            )
        except UnusableKeys as error:
            raise ConfigurationError(f"jwt: {error}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"upstream_ca or a URL can't be used: {reason}") from None

    # -- in place -----------------------------------------------------------------------------------------------------

    def install(self, replacement: Candidate) -> Forwarder:
        """Serve by ``replacement`` from now on. Returns the forwarder of before, whose idle connections are to be closed."""
        before = self.gateway.lasting.forwarder
        replacement.gateway.install()
        self.gateway, self.settings = replacement.gateway, replacement.settings
        self.served.replace(self.gateway)
        for place in replacement.places:
            place()
        return before

    async def settle(self, before: Forwarder) -> None:
        """Finish what `install` began, in an event loop: note by which rules records are addressed, close connections."""
        try:
            for line in await self.gateway.check_addresses():
                log.warning("%s", line)
        except CacheError as error:
            log.warning("the rules that records are addressed by are not noted: %s", error)
        await before.close()
        gc.collect()  # the app of its pages is a cycle, and collections are rare here; what is from the start is not looked at

    # -- reported -----------------------------------------------------------------------------------------------------

    def applied(self, before: GatewaySettings, wait: Sequence[str]) -> Reloaded:
        """The outcome of a reload that was installed, for the log and for who had it done."""
        for line in settings_advice(self.settings):
            log.warning("%s", line)
        cache, namespace = self.gateway.lasting.cache, self.settings.namespace
        if not isinstance(cache, KeepsSecretCheck):  # else the cache tells, by what the last start has left there
            rules = [address_rules(gateway_policies(settings)) for settings in (before, self.settings)]
            if moved := moved_rules(*rules):
                log.warning("%s", moved_line(namespace, moved))
        if wait:
            log.warning("%s: changed, and in effect after a restart; all else is in effect", ", ".join(wait))
        was, digest = settings_digest(before), self.digest
        log.info("reloaded: configuration %s%s", digest, ", as before" if digest == was else f", was {was}")
        self.gateway.lasting.metrics.reloaded("applied")
        return Reloaded(digest, wait=tuple(wait))

    def refused(self, why: str) -> Reloaded:
        """The same of one that has changed nothing."""
        log.error("not reloaded, configuration %s stays: %s", self.digest, why)
        self.gateway.lasting.metrics.reloaded("refused")
        return Reloaded(self.digest, why)

"""The standing of what is shared: the processes on a cache, the cache, and the settings in effect, each with its origin."""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from oncegate.app.operators.heartbeats import processes
from oncegate.app.operators.readiness import Readiness
from oncegate.app.settings.gateway import GatewaySettings, redact
from oncegate.app.settings.shown.digest import settings_digest
from oncegate.app.settings.shown.effective import effective
from oncegate.app.turns import in_pieces
from oncegate.cache.errors import CacheError, CacheUnavailable
from oncegate.cache.store import Cache, Describes, KeepsProcesses
from oncegate.middleware.admission.request import gateway_id

_AT_ONCE: Final = 20
"""Settings that are listed before others have the loop."""
SECONDS: Final = 1.0
"""How long an answer waits for a cache that does not say how it stands."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The standing of the gateway of these ``settings``, with its ``cache``, whose state ``readiness`` has."""

    settings: GatewaySettings
    cache: Cache
    readiness: Readiness

    async def processes(self) -> dict[str, Any]:
        """See `oncegate.app.operators.heartbeats.processes`, within `SECONDS`. Raises `oncegate.cache.errors.CacheError`."""
        if not isinstance(self.cache, KeepsProcesses):
            raise CacheUnavailable("this cache does not keep which processes are up")
        try:
            async with asyncio.timeout(SECONDS):
                return await processes(self.cache, self.settings.namespace)
        except TimeoutError:
            raise CacheUnavailable(f"the cache did not answer within {SECONDS:g} s") from None

    async def of_cache(self) -> dict[str, Any]:
        """The cache: whether it can be reached, and its size, limit and persistence, as far as it says so within `SECONDS`."""
        kind, parts, advice, failed = self.settings.cache_scheme, list[dict[str, Any]](), list[str](), None
        try:
            async with asyncio.timeout(SECONDS):
                await self.readiness.check_cache()
                if isinstance(self.cache, Describes):
                    described = await self.cache.describe()
                    kind, parts, advice = described.kind, described.parts, described.advice
        except TimeoutError:
            failed = f"it did not answer within {SECONDS:g} s"
        except CacheError as error:
            failed = str(error)
        readable = self.readiness.is_readable and failed is None
        state = "unavailable" if not readable else "available" if self.readiness.is_writable else "read-only"
        return {
            "kind": kind,
            "url": redact(self.settings.cache),
            "state": state,
            "failed": failed,
            "parts": parts,
            "advice": advice,
        }

    async def of_settings(self) -> dict[str, Any]:
        """The ``settings`` in effect here, one by one, with the origin of each and without secrets."""
        return {
            "configuration": settings_digest(self.settings),
            "process": gateway_id(),
            "settings": [each.as_json() async for each in in_pieces(effective(self.settings), _AT_ONCE)],
        }

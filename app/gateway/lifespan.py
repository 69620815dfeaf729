"""A gateway's lifespan in one process: what is checked before it serves, what runs meanwhile, and an orderly end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from oncegate.app.gateway.lasting import Lasting
from oncegate.cache.errors import CacheError, CacheUnavailable
from oncegate.middleware.http.asgi import Receive, Send

log = logging.getLogger("oncegate.gateway")


class StartRefused(Exception):
    """The gateway must not start. The text is one line for the operator."""


class Lifespan:
    """The lifespan of a process that starts with this gateway, and goes on where another one takes its place.

    ``refusal`` is why it must not begin, in one line for the operator. ``write`` tries whether the cache takes
    records. ``sample`` runs from start to stop, in one process.
    """

    def __init__(
        self,
        lasting: Lasting,
        *,
        write: Callable[[], Awaitable[None]],
        check_addresses: Callable[[], Awaitable[list[str]]],
        sample: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self.refusal: str | None = None
        self.lasting = lasting
        self._write = write
        self._check_addresses = check_addresses
        self._sample = sample
        self._sampling: asyncio.Future[None] | None = None

    def enter(self, index: int) -> None:
        """This process is worker ``index`` from now on."""
        self.lasting.enter(index)
        if index:
            self._sample = None  # the first one does, for all

    async def __call__(self, receive: Receive, send: Send) -> None:
        """ASGI's lifespan."""
        await receive()
        try:
            await self.start()
        except StartRefused as error:
            self.refusal = str(error)
            await send({"type": "lifespan.startup.failed", "message": ""})  # whoever started us logs it, in one line
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def start(self) -> None:
        """Begin to fetch what requests will need; check the cache.

        Raises `StartRefused` where it can't hold the guarantees; starts all the same where it is away.
        """
        self.lasting.start()
        if self.lasting.tokens is not None:
            self.lasting.tokens.source.refresh()
        try:
            for line in await self.lasting.cache.check():
                log.warning("%s", line)
            takes_records = await self._takes_records()
            try:
                for line in await self._check_addresses():
                    log.warning("%s", line)
            except CacheUnavailable:
                if takes_records:  # else what is wrong was said, and what to do about it
                    raise
        except CacheUnavailable as error:
            # What passes through doesn't need it, and it may come back.
            log.warning("the cache can't be reached yet, keyed requests are refused until then: %s", error)
        except CacheError as error:
            await self.lasting.close()
            raise StartRefused(f"cache: {error}") from None
        if self._sample is not None:
            self._sampling = asyncio.ensure_future(self._sample())

    async def _takes_records(self) -> bool:
        try:
            await self._write()
        except CacheError as error:
            log.warning("the cache takes no records, keyed requests are refused until it does: %s", error)
            return False
        return True

    async def stop(self) -> None:
        """Wait for attempts to end, then close connections."""
        if self._sampling is not None:
            self._sampling.cancel()
        await self.lasting.drain()
        await self.lasting.close()
        if self.lasting.access_log is not None:
            self.lasting.access_log.lines.close()

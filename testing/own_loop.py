"""A server with an event loop in a thread of its own, so that it answers while the test does something else."""

import asyncio
import threading
from contextlib import AbstractAsyncContextManager
from typing import Self

from testing.upstreams import Peer, Upstream


class OwnLoop:
    """For the length of a ``with``. `serving` runs on `loop`; the test goes on once it has been entered."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__)

    def serving(self) -> AbstractAsyncContextManager[object]:
        """Serves within the context."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._running.wait(30)
        return self

    def __exit__(self, *exc: object) -> None:
        self.loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(30)
        self.loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._main())

    async def _main(self) -> None:
        async with self.serving():
            self._running.set()
            await self._stopped.wait()


class OwnLoopUpstream(OwnLoop):
    """An upstream at ``url``, which serves each connection by `serve`."""

    def __init__(self) -> None:
        super().__init__()
        self._upstream = Upstream(self.serve)

    def serving(self) -> Upstream:
        return self._upstream

    @property
    def url(self) -> str:
        return self._upstream.url

    async def serve(self, peer: Peer) -> None:
        """Answers what comes by one connection."""
        raise NotImplementedError

"""A forwarder and its upstream."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from oncegate.app.upstream.forward import Forwarder
from testing.upstreams import Behaviour, Upstream


@asynccontextmanager
async def forwarding(
    behaviour: Behaviour | Sequence[Behaviour], **options: Any
) -> AsyncIterator[tuple[Upstream, Forwarder]]:
    """An upstream with this ``behaviour``, and a forwarder to it with these ``options``, which is closed first."""
    async with Upstream(behaviour) as upstream:
        forwarder = Forwarder(upstream.url, **options)
        yield upstream, forwarder
        await forwarder.close()

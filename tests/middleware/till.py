"""A processor of payments for tests: it counts what it executes, and leaves nothing behind."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oncegate import CommandProcessor


@dataclass
class Pay:
    amount: int
    to: str = "shop"


class Till:
    """Executes payments: counts them, and raises what is given instead of the next ones."""

    def __init__(self) -> None:
        self.executed: list[Any] = []
        self.instead: list[BaseException] = []
        self.began = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, command: Any) -> Any:
        self.executed.append(command)
        self.began.set()
        await self.gate.wait()
        if self.instead:
            raise self.instead.pop(0)
        return {"number": len(self.executed)}


Make = Callable[..., CommandProcessor[Any, Any]]


async def begun(processor: CommandProcessor[Any, Any], till: Till) -> "asyncio.Future[Any]":
    """A call under the key ``k``, which ``till`` holds until its ``gate`` is set."""
    till.gate.clear()
    call = asyncio.ensure_future(processor.process(Pay(5), idempotency_key="k"))
    await till.began.wait()
    return call

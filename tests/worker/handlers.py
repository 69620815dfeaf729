"""Handlers for workers under test. What they do is in the command's payload; that they did it is in a file outside of Redis.

``{"do": ...}``: ``book`` (the default) has an effect, the others fail, die or wait in their ways.
"""

import asyncio
import gzip
import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from oncegate import NotProcessed, NotRetryable, OutcomeUnknown
from oncegate.middleware.consumers.command_context import CommandContext
from oncegate.middleware.consumers.handlers.handling import current

_effects = -1


class Panic(BaseException):
    """As func_timeout's, GeneratorExit, or what a panic in an extension written in Rust becomes."""


def settle_in() -> None:
    """Open the file of effects: each is one line, appended in one write."""
    global _effects
    _effects = os.open(os.environ["EFFECTS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def effect(context: CommandContext) -> None:
    os.write(_effects, f"{context.key} {context.attempt} {os.getpid()}\n".encode())


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def book(payload: dict[str, Any], context: CommandContext) -> Any:  # noqa: C901 - a line for each thing to do
    do = payload.get("do", "book")
    if do == "die":
        die()
    if do == "wait":
        gate = Path(payload["gate"])
        gate.with_suffix(f".{os.getpid()}").touch()  # says who waits at it
        while not gate.exists():
            time.sleep(0.01)
        do = payload.get("then", "book")
    if do == "fail" or (do == "fail-once" and context.attempt == 1):
        raise ValueError(f"could not book for {payload.get('name')}")
    if do == "panic":
        raise Panic(f"out of {payload.get('name')}'s hands")
    if do == "leave-once" and context.attempt == 1:
        raise {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}[payload["by"]]
    if do == "reject":
        raise NotRetryable("no such account")
    if do == "unknown":
        raise OutcomeUnknown("the bank did not answer")
    if do == "nothing" and not Path(payload["gate"]).exists():
        raise NotProcessed("the shop is closed")
    effect(context)
    if do == "die-after" and context.attempt == 1:
        die()
    if do == "odd":
        return object()
    if do == "large":
        return "x" * payload["size"]
    return {"booked": context.key, "attempt": context.attempt}


def die_or_book(payload: dict[str, Any], context: CommandContext) -> Any:
    """The killer dies as soon as the gate is open; its neighbours would book only some time later."""
    gate = Path(payload["gate"])
    first = not gate.exists()
    while not gate.exists():
        gate.with_suffix(f".{os.getpid()}").touch()
        time.sleep(0.01)
    if payload.get("then") == "die":
        die()
    if first:
        time.sleep(3600)  # killed meanwhile
    effect(context)
    return "booked"


def die_or_book_slowly(payload: dict[str, Any], context: CommandContext) -> Any:
    """As `die_or_book`; a neighbour takes long enough to be killed by one that runs beside it."""
    gate = Path(payload["gate"])
    if gate.exists() and payload.get("then") != "die":
        time.sleep(0.4)
    return die_or_book(payload, context)


async def book_async(payload: dict[str, Any], context: CommandContext) -> Any:
    if payload.get("do") == "hang":
        effect(context)
        await asyncio.sleep(3600)
    if payload.get("do") == "cancel-once" and context.attempt == 1:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
    return book(payload, context)


def return_context(payload: dict[str, Any], context: CommandContext) -> list[Any]:
    effect(context)
    return [
        *(context.method, context.target, context.content_type, context.correlation, context.key, context.attempt),
        payload,
    ]


def return_request(body: bytes, context: CommandContext) -> list[Any]:
    effect(context)
    if context.request_header("Content-Encoding") == "gzip":
        body = gzip.decompress(body)
    return [context.request_headers, context.route, context.caller, body.decode()]


class Payment(BaseModel):
    amount: int


def pay(payment: Payment, context: CommandContext) -> dict[str, int]:
    effect(context)
    return {"paid": payment.amount}


def book_once(payload: dict[str, Any], context: CommandContext) -> str:
    """Check, then act, in one transaction of the handler's own store: what closes the window between effect and record."""
    with sqlite3.connect(os.environ["BOOKS"], timeout=30, isolation_level="IMMEDIATE") as books:
        books.execute("CREATE TABLE IF NOT EXISTS booked (key TEXT PRIMARY KEY)")
        done = books.execute("INSERT OR IGNORE INTO booked VALUES (?)", (context.key,)).rowcount
        if done:
            effect(context)
    if payload.get("do") == "die-after" and context.attempt == 1:
        die()
    return "booked" if done else "booked before"


def return_number(payload: dict[str, Any], context: CommandContext) -> list[Any]:
    if payload.get("do") == "reject" and not Path(payload["gate"]).exists():
        raise NotRetryable("not yet")
    (executed,) = current()
    return [context.aggregate, context.sequence, executed.delivery.aggregate, executed.delivery.sequence]

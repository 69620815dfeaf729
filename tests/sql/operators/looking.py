"""What operators' tests do by HTTP and by the command line, beside each other."""

import asyncio
import json
from typing import Any

import httpx
from sqlalchemy import NullPool, create_engine
from sqlalchemy.orm import Session

from oncegate.app.gateway.gateway import Gateway
from oncegate.cache.backoff import Backoff
from oncegate.sql import Inbox, OutboxSource, Relay
from testing.command_line import invoke
from testing.waiting import until
from tests.app.described import DESCRIPTION, assert_described
from tests.app.operators.console.browsing import READER, WRITER, Browser
from tests.sql.handlers.parking import consume, deliveries, failing
from tests.sql.outbox.sinks import Sink, added, ended
from tests.sql.places import Place
from tests.sql.projections.accounts import Ledger, add, engine_of, position, projection

API = "/_oncegate"
HOSTILE = "<img src=x onerror=alert()>\"'&{{7*7}}"

__all__ = ["API", "HOSTILE", "READER", "WRITER", "Operated", "by_command", "described", "parks", "refused", "stands"]


def by_command(place: Place, *arguments: str) -> Any:
    """What a command prints of the database, as JSON."""
    done = invoke(*arguments, "--json", "--database", place.url)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def parks(place: Place, *, aggregate: str = "a") -> tuple[Inbox, set[str]]:
    """Number 1 of an aggregate has failed for good, 2 and 3 are parked behind it. The inbox, and what its handler fails for."""
    ledger = Inbox("ledger", order="contiguous")
    broken, work = failing(f"{aggregate}001")
    handler = place.handler(ledger, work)
    place.in_a_thread(lambda: consume(handler, *deliveries(2, 3, 1, aggregate=aggregate)))
    return ledger, broken


def described(answer: httpx.Response) -> httpx.Response:
    """``answer`` itself, once it was held against openapi/oncegate.yaml."""
    path = answer.request.url.path.removeprefix(API)
    operations = DESCRIPTION["paths"]
    first, *parts = path.strip("/").split("/")
    if path not in operations:
        name = "{name}" if first == "projections" else "{id}"
        path = "/".join(["", first, name, *parts[1:]])
    operation = operations[path][answer.request.method.lower()]
    assert_described(answer, operation["responses"][str(answer.status_code)])
    return answer


async def refused(place: Place, *aggregates: str | None) -> int:
    """Messages, of which those of the first aggregate are given up; the first one's id."""
    added(place, *aggregates)
    sink = Sink()
    sink.refuses = lambda message: message.aggregate == aggregates[0]
    engine = create_engine(place.url.replace("asyncpg", "psycopg"), poolclass=NullPool)
    source = OutboxSource(engine, attempts=1, pauses=Backoff(60, 60))
    await Relay(source, sink).publish_batch()
    await source.close()
    return int((await asyncio.to_thread(by_command, place, "outbox", "list", "--held"))["messages"][0]["id"])


def stands(place: Place) -> None:
    """A projection that stands at the second of three events."""
    ledger = Ledger()
    ledger.produce(place, "a", "bad", "b")

    def work(event: Any, session: Session) -> None:
        if event.account == "bad":
            raise LookupError("no such account")
        add(event, session)

    async def run() -> None:
        engine = engine_of(place)
        runner = projection(place, work=work).runner(engine)
        task = asyncio.create_task(runner.run())
        await until(lambda: getattr(position(place), "failed_at", None) is not None, "it stands")
        runner.stop()
        await task
        await ended(engine)

    asyncio.run(run())


class Operated:
    """A gateway with a database, by its API and by its console."""

    def __init__(self, client: httpx.AsyncClient, gateway: Gateway) -> None:
        self.client = client
        self.browser = Browser(client, gateway.lasting.cache)

    async def get(self, path: str, token: str = READER, **query: Any) -> httpx.Response:
        return described(await self.client.get(API + path, params=query, headers={"authorization": f"Bearer {token}"}))

    async def post(self, path: str, token: str = WRITER, **members: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {token}"}
        return described(await self.client.post(API + path, json=members, headers=headers))

    async def audit(self) -> list[tuple[str, str, str, str]]:
        """Who, what, done, why; the newest first."""
        lines = (await self.get("/audit/")).json()["lines"]
        return [(each["operator"], each["what"], each["done"], each["reason"]) for each in lines]

    async def in_a_thread(self, work: Any, *arguments: Any) -> Any:
        """The result of ``work``, which runs an event loop of its own."""
        return await asyncio.to_thread(work, *arguments)

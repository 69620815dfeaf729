"""The consumers' database as operators see it: what waits in it, and what they do about that, as the command line does.

Importing this loads SQLAlchemy: the factory does so where a database is given.

Strategy. What reads and changes the database is `oncegate.sql`, by its functions for operators. Each call has a connection of its
own, in a thread with an event loop of its own: nothing here holds up the gateway's loop, keeps a connection open, or waits
without a limit.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

from oncegate.app.operators.database.errors import MOST_LISTED, ChangeRefused, DatabaseUnavailable, NotKept
from oncegate.app.operators.records.records import NotARecord
from oncegate.app.settings.gateway import redact
from oncegate.middleware.rules.keys.digests import Digests
from oncegate.sql.database.access import (
    BoundedDatabase,
    DatabaseFailed,
    DatabaseSilent,
    NotDone,
    NotInDatabase,
    database_url,
)
from oncegate.sql.inbox import markers
from oncegate.sql.order.waiting import OrderTables, WaitingPlace
from oncegate.sql.order.waiting import Waiting as Waiting  # for pages, whose room knows nothing of oncegate.sql
from oncegate.sql.outbox import operators as outboxes
from oncegate.sql.outbox.totals import database_totals
from oncegate.sql.projections import operators as projections

log = logging.getLogger("oncegate.operators")

Result = TypeVar("Result")

READ_SECONDS: Final = 5.0
"""The time for a look, connecting included."""
GLANCE_SECONDS: Final = 2.0
"""The time for what stands beside other things on a page."""
CHANGE_SECONDS: Final = 15.0
"""The time for a change, which waits for consumers that are at the same rows."""
_THREADS: Final = 4
"""Calls at once in a process; more wait for their turn, as a part of their time."""
_SPARE_SECONDS: Final = 2.0
"""The time that a driver may need to give up by itself."""
MOST_BODY: Final = 64 * 1024
"""Bytes of a message's body that are shown."""
_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_CURSOR: Final = re.compile(r"([0-9]{1,17})\.([A-Za-z0-9._-]{1,64})\.((?:[0-9a-f]{2}){1,64})")


class OperatorsDatabase:
    """The database of ``url``, which names an asynchronous driver, or SQLite. ``digests`` are those of its inboxes.

    Each call raises `DatabaseUnavailable`, `NotKept`, `oncegate.app.operators.records.records.NotARecord` for what can't be
    meant, and what changes something `ChangeRefused`. Raises ``ImportError`` where the driver is not installed, ``ValueError``
    for no URL.
    """

    def __init__(self, url: str, digests: Digests) -> None:
        try:
            database_url(url).get_dialect().import_dbapi()
        except NotDone as error:
            raise ValueError(str(error)) from None
        # A driver that is waited for in a thread can't be stopped there: of psycopg's two halves the one that can.
        self._url = url.replace("postgresql+psycopg:", "postgresql+psycopg_async:", 1)
        self._where = redact(url)
        self._digests = digests
        self._threads = ThreadPoolExecutor(_THREADS, "oncegate-database")

    # -- looks --------------------------------------------------------------------------------------------------------

    async def totals(self, *, at_a_glance: bool = False) -> dict[str, Any]:
        """How many ``aggregates`` wait, how many messages of the ``outbox``, how many ``projections`` are stuck; ``None`` for
        what is not there. ``at_a_glance``: there is less time for it.
        """
        seconds = GLANCE_SECONDS if at_a_glance else READ_SECONDS
        return (await self._run(lambda bounded: database_totals(bounded, None), seconds)).as_json()

    async def waiting(
        self, *, limit: int = MOST_LISTED, cursor: str = "", aggregate: str | bytes | None = None
    ) -> tuple[list[Waiting], str]:
        """Aggregates that wait, the longest first: one ``aggregate`` (its id, or its digest), or all. And the cursor behind
        them, empty where there are no more.
        """
        after = _place(cursor) if cursor else None
        found = await self._run(partial(_waiting, limit + 1, after, aggregate), READ_SECONDS)
        return found[:limit], _further(found, limit)

    async def waiting_list(
        self, *, limit: int = MOST_LISTED, cursor: str = "", aggregate: str | None = None
    ) -> dict[str, Any]:
        """The same as JSON, made in the thread: ``waiting`` and ``cursor``."""
        after = _place(cursor) if cursor else None

        def look(bounded: BoundedDatabase) -> dict[str, Any]:
            found = _waiting(limit + 1, after, aggregate, bounded)
            return {"waiting": [each.as_json() for each in found[:limit]], "cursor": _further(found, limit)}

        return await self._run(look, READ_SECONDS)

    async def markers(self, key: str, caller: str = "") -> dict[str, Any]:
        """Which consumers have processed a message, by its key or its record's id: ``record`` and ``markers``."""
        record, found = await self._run(
            lambda bounded: markers.find(bounded, None, key, caller, self._digests), READ_SECONDS
        )
        return {"record": record, "markers": [each.as_json() for each in found]}

    async def messages(
        self, *, limit: int, after: int = 0, held: bool = False, outbox: str | None = None, aggregate: str | None = None
    ) -> dict[str, Any]:
        """The oldest ``messages`` of outboxes that are not published, behind the id ``after``, and where to go on; 0: nowhere."""
        if "\x00" in f"{outbox or ''}{aggregate or ''}":
            raise NotARecord("no name or id of an outbox has a NUL in it")

        def look(bounded: BoundedDatabase) -> dict[str, Any]:
            found = outboxes.rows(
                bounded, None, outbox=outbox, aggregate=aggregate, held=held, most=limit + 1, after=after
            )
            shown = [_without(each, "key", "headers") for each in found[:limit]]
            return {"messages": shown, "after": shown[-1]["id"] if len(found) > limit else 0}

        return await self._run(look, READ_SECONDS)

    async def message(self, number: int, *, body: bool = False) -> dict[str, Any] | None:
        """A message of an outbox; with ``body`` its key and headers, too, and the first 64 KiB of its body as text: for
        `oncegate.app.operators.showing.whole_message`, which reports it.
        """
        found = await self._run(lambda bounded: outboxes.find(bounded, None, number), READ_SECONDS)
        if found is None:
            return None
        if not body:
            return _without(found[0], "key", "headers")
        return found[0] | {"body": found[1][:MOST_BODY].decode("utf-8", "replace")}

    async def projections(self) -> list[dict[str, Any]]:
        """How far each projection is, by name."""

        def look(bounded: BoundedDatabase) -> list[dict[str, Any]]:
            return [each.as_json() for each in projections.standings(bounded, None)[:MOST_LISTED]]

        return await self._run(look, READ_SECONDS)

    async def projection(self, name: str) -> dict[str, Any]:
        """The same of one."""
        return (await self._run(lambda bounded: projections.find(bounded, None, name), READ_SECONDS)).as_json()

    # -- changes ------------------------------------------------------------------------------------------------------

    async def skip(self, consumer: str, aggregate: str | bytes, sequence: int) -> int:
        """Count a number as applied that never comes; how many are parked behind it."""
        return await self._run(
            lambda bounded: OrderTables(None).skip(bounded, consumer, aggregate, sequence), CHANGE_SECONDS
        )

    async def retry_parked(self, consumer: str, aggregate: str | bytes) -> int:
        """Have a parked message that has failed for good tried again; its number."""
        return await self._run(lambda bounded: OrderTables(None).retry(bounded, consumer, aggregate), CHANGE_SECONDS)

    async def retry_messages(self, numbers: tuple[int, ...] = ()) -> int:
        """Have messages of outboxes tried again at once; all that are dead, if none are named. How many."""
        return await self._run(lambda bounded: outboxes.retry(bounded, None, numbers), CHANGE_SECONDS)

    async def discard_message(self, number: int) -> dict[str, Any] | None:
        """Delete a message that is not published; what it was, ``None`` where it is not there."""
        return await self._run(lambda bounded: outboxes.discard(bounded, None, number), CHANGE_SECONDS)

    async def skip_event(self, projection: str, position: int) -> None:
        """Have the event at which a projection stands passed without being applied."""
        if "\x00" in projection:
            raise NotKept("no projection's name has a NUL in it")
        await self._run(lambda bounded: projections.skip(bounded, None, projection, position), CHANGE_SECONDS)

    async def _run(self, step: Callable[[BoundedDatabase], Result], seconds: float) -> Result:
        call = asyncio.get_running_loop().run_in_executor(self._threads, step, BoundedDatabase(self._url, seconds))
        try:
            return await asyncio.wait_for(call, seconds + _SPARE_SECONDS)
        except TimeoutError:
            raise DatabaseUnavailable(f"{self._where}: no answer within {seconds:g} s", is_silent=True) from None
        except DatabaseFailed as error:
            raise DatabaseUnavailable(
                f"{self._where}: {error.reason}", is_silent=isinstance(error, DatabaseSilent)
            ) from None
        except NotInDatabase as error:
            raise NotKept(str(error)) from None
        except NotDone as error:
            raise (NotARecord if error.usage else ChangeRefused)(str(error)) from None
        except (TypeError, ValueError) as error:  # a driver's, for an option of the URL that it doesn't know
            log.exception("the database can't be used as it is given")
            why = f"the driver can't use it as it is given ({type(error).__name__}): are the URL's options its own?"
            raise DatabaseUnavailable(f"{self._where}: {why}") from None


def _waiting(
    most: int, after: WaitingPlace | None, aggregate: str | bytes | None, bounded: BoundedDatabase
) -> list[Waiting]:
    return OrderTables(None).waiting(bounded, most=most, after=after, aggregate=aggregate)


def _further(found: Sequence[Waiting], limit: int) -> str:
    """The cursor behind the first ``limit``; empty where those are all."""
    return _cursor(found[limit - 1].place) if len(found) > limit else ""


def _cursor(place: WaitingPlace) -> str:
    since, consumer, aggregate = place
    return f"{(since - _BEGIN) // _MICROSECOND}.{consumer}.{aggregate.hex()}"


def _place(cursor: str) -> WaitingPlace:
    """The place of a cursor. Raises `NotARecord`."""
    given = _CURSOR.fullmatch(cursor)
    if given is None:
        raise NotARecord("cursor takes what an earlier list ended with")
    return _BEGIN + int(given[1]) * _MICROSECOND, given[2], bytes.fromhex(given[3])


def _without(members: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in members.items() if name not in names}

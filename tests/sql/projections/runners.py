"""Runners of the projection balance.v1 in processes of their own, which die, or stand still, where it is told.

python -m tests.sql.projections.runners URL dies FIRST LAST
    One after the other, forked here: each dies (SIGKILL) at one of its statements or commits, the FIRST to the LAST. Prints how
    they ended.
python -m tests.sql.projections.runners URL stands STALL_LIMIT
    One that stands still (SIGSTOP) in the midst of its first batch, and prints so before; then it goes on, and prints what it
    warns of. STALL_LIMIT is in seconds.
python -m tests.sql.projections.runners URL resets
    One that dies before the commit of a reset.
python -m tests.sql.projections.runners URL runs [BATCH]
    One that runs until it is killed.
"""

import asyncio
import logging
import os
import signal
import sys
from typing import Any

from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from tests.sql.consumers import die, exit_code, forked, stand_still
from tests.sql.places import Place, done, place_of
from tests.sql.projections.accounts import add, engine_of, projection

BATCH = 3


def run(place: Place, dies_at: int = 0, work: Any = add, **options: Any) -> None:
    """Run until it dies: at so many statements and commits, counted before each, and once more behind each commit."""
    engine = engine_of(place)
    count = 0

    def on_step(*_: object) -> None:
        nonlocal count
        count += 1
        if count == dies_at:
            die()

    sync_engine = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    event.listen(sync_engine, "before_cursor_execute", on_step)
    event.listen(sync_engine, "commit", on_step)
    event.listen(Session, "after_commit", on_step)
    asyncio.run(projection(place, work=work, **{"batch": BATCH, **options}).runner(engine).run())


async def emptied(place: Place, session: Any) -> None:
    """Reset, empty, and die before the commit."""
    await done(projection(place).reset(session))
    for table in ("balance", "applied"):
        await done(session.execute(text(f"DELETE FROM {table}")))
    die()


def main(url: str, what: str, *given: str) -> None:
    place = place_of(url, connect_args={"timeout": 60} if url.startswith("sqlite") else {})
    if what == "dies":
        first, last = map(int, given)
        codes = []
        for number in range(first, last + 1):

            def work(number: int = number) -> bool:
                run(place, number)
                return True

            codes.append(exit_code(forked(work)))
        sys.stdout.write(f"{codes}\n")
    elif what == "stands":
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        stood = False

        def stands(row: Any, session: Session) -> None:
            nonlocal stood
            add(row, session)
            if not stood:
                stood = True
                sys.stdout.write("stands still\n")
                sys.stdout.flush()
                stand_still()

        run(place, work=stands, stall_limit=float(given[0]))
    elif what == "resets":
        place.transact(lambda session: emptied(place, session))
    else:
        run(place, batch=int(given[0]) if given else BATCH)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    main(*sys.argv[1:])
    os._exit(0)

"""Projections as a user's module has them, for ``oncegate project``: this one's handler fails at what is of the account bad."""

from typing import Any

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from oncegate.sql import Projection
from tests.sql.projections.accounts import EVENTS, add

balance = Projection("balance.v1", EVENTS, aggregate="account", sequence="version")
history = Projection("history.v1", EVENTS, aggregate="account", sequence="version")
plain = Projection("plain", EVENTS)


@balance.apply
async def apply(event: Row[Any], session: AsyncSession) -> None:
    await session.run_sync(lambda sync: add(event, sync))
    if event.account == "bad":
        raise LookupError("no such account")


@history.apply(batch=True)
async def keep(events: Any, session: AsyncSession) -> None:
    pass


@plain.apply
def apply_plain(event: Row[Any], session: Session) -> None:
    pass

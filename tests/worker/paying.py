"""A handler under an inbox, async with SQLite, for a worker under test."""

import os
from typing import Any

from sqlalchemy import NullPool, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from oncegate.middleware.consumers.command_context import CommandContext
from oncegate.sql import Inbox

sessions = async_sessionmaker(create_async_engine(os.environ["PAYMENTS"], poolclass=NullPool))


@Inbox("billing").transaction(sessions)
async def pay(payment: dict[str, Any], session: AsyncSession, context: CommandContext) -> dict[str, Any]:
    await session.execute(text("UPDATE account SET balance = balance + :amount"), {"amount": payment["amount"]})
    return {"paid": payment["amount"], "key": context.key}

"""A handler under an inbox that keeps an order, with SQLite, for a worker under test."""

import os
from typing import Any

from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from oncegate.sql import Inbox

engine = create_engine(os.environ["PAYMENTS"].replace("+aiosqlite", ""), poolclass=NullPool)


@Inbox("ledger", order="contiguous").transaction(sessionmaker(engine))
def book(payment: dict[str, Any], session: Session) -> None:
    session.execute(text("UPDATE account SET balance = balance + :amount"), {"amount": payment["amount"]})

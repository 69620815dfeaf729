"""A handler whose transaction has an outbox, traced: for a worker as a process."""

import os
from typing import Any

from opentelemetry import trace
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from oncegate.otel import Tracing
from oncegate.sql import Outbox

INVOICES = Outbox("invoices", tracing=Tracing())


def book(payload: dict[str, Any]) -> dict[str, str]:
    """One span of its own, in which a message is added."""
    with trace.get_tracer("shop").start_as_current_span("booking"):
        engine = create_engine(os.environ["BOOKS_URL"])
        with Session(engine) as session, session.begin():
            INVOICES.add(session, os.environ["TOPIC"], {"name": payload["name"]}, key=payload["message_key"])
        engine.dispose()
    return {"booked": "yes"}

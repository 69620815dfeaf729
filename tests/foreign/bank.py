"""A handler that asks a bank: one that refuses what it does not know, until it does, and books what it takes."""

from pathlib import Path
from typing import Any

from oncegate import NotRetryable
from oncegate.middleware.consumers.command_context import CommandContext
from tests.worker.handlers import effect


def pay(payment: dict[str, Any], context: CommandContext) -> dict[str, str]:
    """Book ``payment``. ``currencies`` is the file with those that the bank knows, beside its own."""
    currency, known = payment.get("currency", "EUR"), Path(payment["currencies"])
    if currency not in ["EUR", *(known.read_text().split() if known.exists() else ())]:
        raise NotRetryable(f"the bank does not know the currency {currency}")
    if account := payment.get("account"):
        raise NotRetryable(f"account {account} is closed")
    effect(context)
    return {"booked": context.key}

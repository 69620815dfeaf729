"""What functions of tests do in threads: they count, wait, and raise what is given instead."""

import threading
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic import BaseModel

PATIENCE = 30.0


@dataclass
class Order:
    id: str
    total: Decimal = Decimal(5)


class Receipt(BaseModel):
    number: int


class Till:
    """Pays: counts, waits for ``go``, and raises what is given ``instead``."""

    def __init__(self) -> None:
        self.paid: list[Any] = []
        self.instead: list[BaseException] = []
        self.began = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def pay(self, what: Any) -> int:
        self.paid.append(what)
        self.began.set()
        assert self.go.wait(PATIENCE)
        if self.instead:
            raise self.instead.pop(0)
        return len(self.paid)

    def __call__(self, what: Any) -> dict[str, int]:
        return {"number": self.pay(what)}

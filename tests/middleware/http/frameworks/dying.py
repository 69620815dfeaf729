"""A payments app whose process is killed where FastAPI's own recipe commits: after the response."""

import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, cast

from fastapi import Depends, FastAPI

from oncegate import IdempotencyMiddleware, IdempotencySettings, RedisCache

BOOKS, DIES = Path(os.environ["BOOKS"]), Path(os.environ["DIES"])


def session() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(BOOKS, check_same_thread=False)
    yield connection
    if DIES.exists():
        DIES.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    connection.commit()
    connection.close()


app = FastAPI()
complete = cast(Literal["auto", "response"], os.environ["COMPLETE"])
app.add_middleware(
    IdempotencyMiddleware,
    cache=RedisCache.from_url(os.environ["REDIS"], timeout=10),
    namespace=os.environ["NAMESPACE"],
    settings=IdempotencySettings(complete=complete, lease=0.3, on_unknown="retry"),
)


@app.post("/payments", status_code=201)
def pay(db: Annotated[sqlite3.Connection, Depends(session)]) -> dict[str, bool]:
    db.execute("INSERT INTO payment VALUES (1)")
    return {"paid": True}

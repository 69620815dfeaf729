"""A payments app by FastAPI's own recipe, which commits after the response, and takes a while for it: python -m ... PORT"""

import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI, Header

from oncegate import IdempotencyMiddleware, IdempotencySettings, RedisCache


def session(pause: Annotated[float, Header()]) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(os.environ["BOOKS"], check_same_thread=False, timeout=60)
    yield connection
    time.sleep(pause)
    connection.commit()
    connection.close()


app = FastAPI()


@app.get("/")
def ready() -> None: ...


@app.post("/payments", status_code=201)
def pay(
    idempotency_key: Annotated[str, Header()], db: Annotated[sqlite3.Connection, Depends(session)]
) -> dict[str, bool]:
    db.execute("INSERT INTO payment VALUES (?)", (idempotency_key,))
    return {"paid": True}


if __name__ == "__main__":
    app.add_middleware(
        IdempotencyMiddleware,
        cache=RedisCache.from_url(os.environ["REDIS"], timeout=10),
        namespace=os.environ["NAMESPACE"],
        settings=IdempotencySettings(lease=0.3, on_unknown="retry"),
    )
    uvicorn.run(app, port=int(sys.argv[1]), log_level="error")

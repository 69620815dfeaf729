"""A process that dies between its response and its commit leaves no success that would be replayed.

Rules of docs/contract.md: R3.25.
"""

import sqlite3
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from testing.servers import RedisServer
from testing.template import ROOT
from testing.uvicorn_app import served_by_uvicorn
from testing.waiting import wait_until

HERE = "tests.middleware.http.frameworks.dying:app"
PAYMENT = {"Idempotency-Key": "k", "Content-Type": "application/json"}


@pytest.mark.parametrize(("complete", "rows"), [("auto", 1), ("response", 0)])
def test_a_commit_that_was_killed_is_made_by_the_retry(
    redis_server: RedisServer, tmp_path: Path, complete: str, rows: int
) -> None:
    """Recorded with the response it never is: so the page warns of that setting."""
    books, dies = tmp_path / "books.db", tmp_path / "dies"
    with sqlite3.connect(books) as connection:
        connection.execute("CREATE TABLE payment (id INTEGER)")
    dies.touch()
    given = {
        "BOOKS": str(books),
        "DIES": str(dies),
        "REDIS": redis_server.url,
        "NAMESPACE": uuid4().hex,
        "COMPLETE": complete,
    }
    with served_by_uvicorn(HERE, ROOT, ready="/", **given) as client:
        try:
            first = client.post("/payments", headers=PAYMENT)
        except httpx.TransportError:
            first = None
        assert first is None or complete == "response"
        wait_until(lambda: not dies.exists(), "it was killed")
    with served_by_uvicorn(HERE, ROOT, ready="/", **given) as client:
        wait_until(lambda: client.post("/payments", headers=PAYMENT).status_code == 201, "the retry is answered")
    with sqlite3.connect(books) as connection:
        assert connection.execute("SELECT count(*) FROM payment").fetchone() == (rows,)

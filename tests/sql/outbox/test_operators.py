"""What operators see of an outbox, and do to it: `oncegate outbox`.

Rules of docs/contract.md: R10.1, R11.22, R11.23, R12.33, R11.66.
"""

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine

from oncegate.cache.backoff import Backoff
from oncegate.sql import OutboxSource, Relay
from testing.command_line import OPERATOR, invoke
from testing.postgresql import PostgreSQLServer
from tests.sql.outbox.events import ON_SQLITE
from tests.sql.outbox.sinks import Sink, added
from tests.sql.places import SyncPlace


@pytest.fixture(params=["postgresql", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    server: PostgreSQLServer = request.getfixturevalue("postgresql")
    return server.url(server.database(), "psycopg")


async def published(source: OutboxSource, sink: Sink) -> None:
    await Relay(source, sink).publish_batch()
    await source.close()


def test_what_holds_an_aggregate_up_is_listed_and_retried_or_discarded(url: str) -> None:
    outbox = partial(invoke, "outbox", ONCEGATE_OUTBOX_DATABASE=url)
    assert "oncegate outbox create" in outbox("list").stderr or url.startswith("sqlite")
    assert outbox("create").stdout == "created\n"
    assert outbox("create").stdout == "they are there already\n"
    added(SyncPlace(url), "a", "a", "b")
    sink = Sink()
    sink.refuses = lambda message: message.aggregate == "a"
    engine = create_engine(url, poolclass=NullPool)
    source = OutboxSource(engine, attempts=1, pauses=Backoff(60, 60))
    asyncio.run(published(source, sink))
    (held,) = json.loads(outbox("list", "--held", "--json").stdout)["messages"]
    assert (held["state"], held["aggregate"], held["sequence"], held["refusal"]) == ("dead", "a", 1, "ValueError: no")
    listed = outbox("list", "--aggregate", "a").stdout
    assert [line.split()[1] for line in listed.splitlines()] == ["STATE", "dead", "waiting"]
    number = str(held["id"])
    assert "body_bytes" in outbox("show", number).stdout
    assert not {"key", "headers", "body"} & json.loads(outbox("show", number, "--json").stdout).keys()
    whole = outbox("show", number, "--body", "--json")
    assert json.loads(whole.stdout)["body"] == "1"
    line = f"message {number} of orders to payments, number 1 of a: its key and body shown by {OPERATOR}"
    assert whole.stderr == f"oncegate.audit: {line}\n"
    assert outbox("retry").returncode == 2
    retried = outbox("retry", "--all-dead", "--reason", "mended")
    assert retried.stdout == "1 of them are tried again\n"
    line = f"oncegate.audit: 1 of messages (all dead) of the outbox: retried by {OPERATOR}: mended\n"
    assert retried.stderr == line
    (waits,) = json.loads(outbox("list", "--limit", "1", "--json").stdout)["messages"]
    assert (waits["id"], waits["state"], waits["attempts"]) == (held["id"], "waiting", 0)
    discarded = outbox("discard", number, "--reason", "wrong")
    assert discarded.stdout == f"discarded {number} of orders to payments, number 1 of a: wrong\n"
    line = f"oncegate.audit: message {number} of orders to payments, number 1 of a: discarded by {OPERATOR}: wrong\n"
    assert discarded.stderr == line
    assert outbox("discard", number, "--reason", "wrong").returncode == 1
    assert outbox("show", number).returncode == 1
    sink.refuses = lambda _: False
    asyncio.run(published(OutboxSource(engine), sink))
    assert sink.numbers() == {"a": [2], "b": [1]}


def test_check_says_what_keeps_an_outbox_from_being_published(url: str) -> None:
    place = SyncPlace(url)
    place.execute("CREATE TABLE other (x INTEGER)")
    missing = invoke("check", "--database", url)
    assert (missing.returncode, missing.stdout.count("oncegate outbox create")) == (1, 3)
    invoke("outbox", "create", "--database", url)
    added(place, "a")
    healthy = invoke("check", "--database", url, "--strict")
    assert healthy.returncode == 0, healthy.stdout
    assert "1 rows wait, none for long" in healthy.stdout
    place.execute("UPDATE oncegate_outbox SET added_at = '2020-01-01 00\\:00\\:00', dead = true")
    advice = json.loads(invoke("check", "--database", url, "--json").stdout)["findings"]
    assert [each["text"].partition(",")[0] for each in advice if each["verdict"] == "advice"] == [
        "1 rows wait",
        "1 rows were refused",
    ]
    assert invoke("check", "--database", url, "--strict").returncode == 1
    if place.is_postgresql:
        place.execute("ALTER TABLE oncegate_outbox DROP COLUMN refusal")
        assert "no column refusal" in invoke("check", "--database", url).stdout


def test_what_is_printed_makes_the_tables(tmp_path: Path) -> None:
    printed = invoke("outbox", "create", "--database", "sqlite://", "--print").stdout
    place = SyncPlace(f"sqlite:///{tmp_path}/shop.db")
    for statement in printed.split(";\n"):
        place.execute(statement.replace(":", "\\:"))
    added(place, "a")
    assert invoke("outbox", "create", "--database", place.url).stdout == "they are there already\n"


def test_the_tables_may_be_in_a_schema(postgresql: PostgreSQLServer) -> None:
    name = postgresql.database()
    postgresql.execute("CREATE SCHEMA shop", name)
    url = postgresql.url(name, "asyncpg")
    assert invoke("outbox", "create", "--database", url, "--schema", "shop").stdout == "created\n"
    assert json.loads(invoke("outbox", "list", "--database", url, "--schema", "shop", "--json").stdout) == {
        "messages": []
    }


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--to", "no_such_module:broker"), "can't be imported"),
        (("--to", "json"), "give package.module:broker"),
        (("--to", "json:dumps"), "FastStream"),
        (("--to", "redis://127.0.0.1:1/0", "--stall-limit", "1"), "stall_limit"),
        (("--to", "redis://127.0.0.1:1/0", "--source", "builtins:str"), "gives a str: no source"),
        (("--to", "redis://127.0.0.1:1/0", "--source", "builtins:str", "--attempts", "1"), "leave out --attempts"),
    ],
)
def test_a_relay_that_can_t_begin_ends_with_one_line(tmp_path: Path, arguments: tuple[str, ...], line: str) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    missing = invoke("relay", "--database", url, "--to", "redis://127.0.0.1:1/0")
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    invoke("outbox", "create", "--database", url)
    refused = invoke("relay", "--database", url, *arguments)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
    assert line in refused.stderr


def test_a_relay_of_a_table_without_its_checkpoints_says_how_to_make_them(tmp_path: Path) -> None:
    place = SyncPlace(f"sqlite:///{tmp_path}/shop.db")
    place.execute(ON_SQLITE)
    source = "tests.sql.outbox.events:source"
    refused = invoke("relay", "--database", place.url, "--to", "redis://127.0.0.1:1/0", "--source", source)
    assert refused.returncode == 1
    line = f"oncegate: there is no table oncegate_checkpoint: oncegate outbox create --database {place.url}"
    assert refused.stderr.splitlines() == [line]

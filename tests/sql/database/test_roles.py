"""Each role that docs describe, made by their own SQL, does what it is for; `oncegate check` has findings for each, and no error.

Rules of docs/contract.md: R12.33.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import MetaData, NullPool, create_engine

from oncegate.sql import Inbox, Outbox, OutboxMisused, Relay, Sequences
from oncegate.sql.inbox.cleanup import Retention, forget
from oncegate.sql.inbox.create import tables as inbox_tables
from oncegate.sql.marking.table import inbox_table
from oncegate.sql.outbox.examine import examine
from oncegate.sql.outbox.tables import all_tables
from testing.command_line import invoke
from testing.postgresql import PostgreSQLServer
from tests.sql.handlers.parking import consume, deliveries, failing
from tests.sql.outbox.events import MADE, source
from tests.sql.outbox.sinks import Sink, added
from tests.sql.places import SyncPlace, _create

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("outbox", "inbox", "ordering")
_BLOCK = re.compile(r"^```sql\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ORDERED = ("ledger_by_first", "ledger", "ledger_watcher", "ledger_operator")
"""Those that need what docs/inbox.md has besides."""


def statements() -> list[str]:
    blocks = [block for page in PAGES for block in _BLOCK.findall((DOCS / f"{page}.md").read_text("utf-8"))]
    lines = [line for block in blocks if "CREATE ROLE" in block for line in block.splitlines()]
    return " ".join(line for line in lines if not line.startswith("--")).rstrip("; ").split(";")


ROLES = re.findall(r"CREATE ROLE (\w+)", ";".join(statements()))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQLServer]:
    """Its own: roles are those of all databases."""
    with PostgreSQLServer() as server:
        for statement in statements():
            if statement.strip().startswith("CREATE ROLE"):
                server.execute(statement)
        yield server


@pytest.fixture
def database(server: PostgreSQLServer) -> str:
    """A database with all tables, whose grants are those of the pages."""
    name = server.database()
    place = SyncPlace(server.url(name, "psycopg"))
    place.prepare()
    for table in all_tables(None):
        place.run(partial(_create, table))
    place.execute(MADE)
    for statement in statements():
        if statement.strip().startswith("GRANT"):
            server.execute(statement, name)
    for role in ORDERED:
        server.execute(f"GRANT billing TO {role}")
    server.execute(f"GRANT SELECT, INSERT ON effects TO {', '.join(ROLES)}", name)
    server.execute("GRANT SELECT ON events TO relay", name)
    return name


def as_role(server: PostgreSQLServer, database: str, role: str, driver: str = "psycopg") -> str:
    return server.url(database, driver).replace("//postgres@", f"//{role}@")


def adds(place: SyncPlace) -> None:
    added(place, "a", None)
    place.run(lambda session: Sequences("invoices").next(session, "a"))


def relays(place: SyncPlace) -> None:
    engine = create_engine(place.url, poolclass=NullPool)

    async def relay() -> None:
        for each in (Relay(engine, Sink()), Relay(source(engine), Sink())):
            await each.publish_batch()
            await each._source.measure()
            await each._source.close()

    asyncio.run(relay())


def looks(*commands: tuple[str, ...]) -> Callable[[SyncPlace], None]:
    def look(place: SyncPlace) -> None:
        for command in commands:
            done = invoke(*command, "--database", place.url)
            assert done.returncode == 0, done.stderr

    return look


def consumes(place: SyncPlace) -> None:
    assert place.deliver(Inbox("billing"), "k-1").first
    assert not place.deliver(Inbox("billing"), "k-1").first


def forgets(place: SyncPlace) -> None:
    consumes(place)
    place.execute("UPDATE oncegate_inbox SET received_at = received_at - interval '30 days'")
    engine = create_engine(place.url, poolclass=NullPool)
    assert asyncio.run(forget(engine, inbox_table(MetaData()), Retention(), lead=0)).pruned == 1


def consumes_by_first(place: SyncPlace) -> None:
    assert place.deliver(Inbox("ledger", order="contiguous"), "k", aggregate="a", sequence=1).first


def parks(place: SyncPlace) -> None:
    handler = place.handler(Inbox("ledger", order="contiguous"), failing()[1])
    consume(handler, *deliveries(2), *deliveries(1))
    assert place.effects() == ["a001", "a002"]


def skips(place: SyncPlace) -> None:
    parking = SyncPlace(place.url.replace("//ledger_operator@", "//ledger@"))
    consume(parking.handler(Inbox("ledger", order="contiguous"), failing()[1]), *deliveries(2))
    looks(("inbox", "skip", "ledger", "a", "--sequence", "1", "--reason", "never comes"))(place)


DO = {
    "shop": adds,
    "relay": relays,
    "watcher": looks(("outbox", "list")),
    "billing": consumes,
    "cleaner": forgets,
    "auditor": looks(("inbox", "stats"), ("check",)),
    "ledger_by_first": consumes_by_first,
    "ledger": parks,
    "ledger_watcher": looks(("inbox", "waiting")),
    "ledger_operator": skips,
}


def test_the_pages_describe_these_roles() -> None:
    assert set(ROLES) == set(DO)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_of_the_pages_does_what_it_is_for(server: PostgreSQLServer, database: str, role: str) -> None:
    DO[role](SyncPlace(as_role(server, database, role)))


MAY = {
    "shop": "add messages, number aggregates, see what waits; to relay messages it lacks UPDATE, DELETE on oncegate_outbox",
    "relay": "relay messages, relay tables of events, see what waits; to add messages it lacks INSERT on oncegate_outbox",
    "watcher": "see what waits; ",
    "billing": "consume, look; to forget markers it lacks DELETE on oncegate_inbox",
    "cleaner": "consume, forget markers, look",
    "auditor": "look; to consume it lacks INSERT, UPDATE on oncegate_inbox",
    "ledger_by_first": "consume by first; to consume by transaction it lacks SELECT, INSERT, UPDATE, DELETE on oncegate_parked",
    "ledger": "consume by first, consume by transaction, see what waits, skip and retry",
    "ledger_watcher": "see what waits; ",
    "ledger_operator": "see what waits, skip and retry; ",
}


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("role", ROLES)
def test_check_has_findings_for_every_role(server: PostgreSQLServer, database: str, role: str, driver: str) -> None:
    done = invoke("check", "--json", "--database", as_role(server, database, role, driver))
    assert (done.returncode, done.stderr) == (0, "")
    findings = json.loads(done.stdout)["findings"]
    texts = [each["text"] for each in findings]
    assert any(each.startswith(f"{role} may {MAY[role]}") for each in texts), texts
    unseen = [each["area"] for each in findings if "not seen, this role has no SELECT" in each["text"]]
    sees = {"watcher": ["order"], "shop": ["source", "order"], "relay": ["order"]}
    of_order = ["outbox", "source"] + ["order"] * (role in ("billing", "cleaner", "auditor", "ledger_by_first"))
    assert unseen == sees.get(role, of_order)
    assert all(each["verdict"] == "advice" for each in findings if each["area"] in unseen)


def test_a_role_that_may_nothing_gets_findings_too(server: PostgreSQLServer) -> None:
    name = server.database()
    server.execute("CREATE SCHEMA closed", name)
    for group in ("outbox", "inbox"):
        invoke(group, "create", "--database", server.url(name, "psycopg"), "--schema", "closed")
    server.execute("GRANT SELECT, UPDATE, DELETE ON closed.oncegate_outbox TO relay", name)
    url = as_role(server, name, "relay")
    done = invoke("check", "--json", "--database", url, "--schema", "closed")
    assert (done.returncode, done.stderr) == (0, "")
    nothing = [each for each in json.loads(done.stdout)["findings"] if "relay may do nothing here" in each["text"]]
    assert [each["verdict"] for each in nothing] == ["advice"] * 3
    assert "it lacks USAGE on the schema closed" in nothing[0]["text"]
    server.execute("GRANT USAGE ON SCHEMA closed TO relay", name)
    done = invoke("check", "--database", url, "--schema", "closed")
    assert "relay may relay messages, see what waits; " in done.stdout


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_who_may_not_add_is_not_sent_to_create(server: PostgreSQLServer, driver: str) -> None:
    name = server.database()
    invoke("outbox", "create", "--database", server.url(name, "psycopg"))
    server.execute("GRANT INSERT ON oncegate_outbox TO shop", name)
    server.execute("GRANT INSERT, SELECT, UPDATE ON oncegate_sequence TO shop", name)
    place = SyncPlace(as_role(server, name, "shop"))
    with pytest.raises(OutboxMisused, match="INSERT, SELECT on oncegate_outbox, and INSERT, SELECT, UPDATE") as refused:
        place.run(lambda session: Outbox("orders").add(session, "t", b"", aggregate="a"))
    assert "permission denied for table oncegate_outbox" in str(refused.value)
    assert "create" not in str(refused.value)
    server.execute("REVOKE SELECT ON oncegate_sequence FROM shop", name)
    with pytest.raises(
        OutboxMisused, match="denied for table oncegate_sequence; it needs INSERT, SELECT, UPDATE on oncegate_seq"
    ):
        place.run(lambda session: Sequences("orders").next(session, "a"))


def open_lines(server: PostgreSQLServer, database: str, role: str) -> list[str]:
    found = examine(as_role(server, database, role), None, long=0)
    return [each.text for each in found if each.area == "transactions" and each.severity == "advice"]


def test_a_neighbours_transaction_holds_up_a_table_of_events_and_check_says_so(
    server: PostgreSQLServer, database: str
) -> None:
    elsewhere = server.database()
    server.execute("CREATE TABLE report (x integer)", elsewhere)
    place = SyncPlace(server.url(database, "psycopg"))
    assert open_lines(server, database, "watcher") == []
    with psycopg.connect(f"host=127.0.0.1 port={server.port} user=postgres dbname={elsewhere}") as neighbour:
        neighbour.execute("INSERT INTO report VALUES (1)")
        place.execute("INSERT INTO events (account, version) VALUES ('a', 1)")
        engine, sink = create_engine(place.url, poolclass=NullPool), Sink()

        async def publish() -> None:
            one = source(engine)
            await Relay(one, sink).publish_batch()
            await one.close()

        asyncio.run(publish())
        assert sink.arrived == []
        (line,) = open_lines(server, database, "watcher")
        assert (
            f"in {elsewhere} (process {neighbour.info.backend_pid}): tables of events are published up to where" in line
        )
        (hidden,) = open_lines(server, database, "relay")
        assert "1 of other roles are open, and this role may not see since when: GRANT pg_read_all_stats TO" in hidden
        neighbour.execute("PREPARE TRANSACTION 'forgotten'")
    (line,) = open_lines(server, database, "relay")
    assert f"in {elsewhere} (prepared): tables of events are published up to where" in line
    server.execute("ROLLBACK PREPARED 'forgotten'", elsewhere)
    asyncio.run(publish())
    assert len(sink.arrived) == 1


def test_who_only_reads_here_keeps_removed_rows_and_holds_up_nothing(server: PostgreSQLServer, database: str) -> None:
    with psycopg.connect(f"host=127.0.0.1 port={server.port} user=postgres dbname={database}") as reader:
        reader.execute("SELECT 1")
        (line,) = open_lines(server, database, "watcher")
    assert "rows that were removed in this database are not vacuumed" in line


def test_the_inbox_s_tables_alone_are_looked_at(server: PostgreSQLServer) -> None:
    name = server.database()
    place = SyncPlace(server.url(name, "psycopg"))
    (table, *_) = inbox_tables(None)
    place.run(lambda session: table.create(session.connection()))
    done = invoke("check", "--database", place.url, "--strict")
    assert done.returncode == 0, done.stdout
    assert "oncegate_inbox is there" in done.stdout
    assert "oncegate_outbox" not in done.stdout

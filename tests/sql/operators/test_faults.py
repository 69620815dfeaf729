"""A database that is away, silent or locked, or that is given wrongly: one line, in time, and nobody else is held up.

Rules of docs/contract.md: R10.40, R11.61, R11.62, R11.63.
"""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import Engine, event

from oncegate.app.cli.check.findings import Severity, examine
from oncegate.app.factory import create_gateway
from oncegate.app.operators.database import database as operators_database
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.sources import ConfigurationError, load
from oncegate.app.settings.shown.digest import settings_digest
from testing.command_line import invoke
from testing.postgresql import PostgreSQLServer
from testing.servers import free_port
from testing.upstreams import OK, Upstream, answering
from testing.waiting import until
from tests.app.reload.test_running import reloadable
from tests.sql.operators.conftest import TOKENS, operating
from tests.sql.operators.looking import READER, Operated, parks
from tests.sql.places import Place, SyncPlace

PASSWORD = "hunter2hunter2"
PATHS = ("/inbox/", "/outbox/", "/projections/", "/database/")
PAGES = ("/order", "/outbox", "/projections")
SECONDS = 1.5


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database has less time than it would have."""
    for name in ("READ_SECONDS", "GLANCE_SECONDS", "CHANGE_SECONDS"):
        monkeypatch.setattr(operators_database, name, SECONDS)


@pytest.fixture
def own_server() -> Iterator[PostgreSQLServer]:
    """One that may be paused."""
    with PostgreSQLServer() as server:
        yield server


def own_place(server: PostgreSQLServer, driver: str) -> SyncPlace:
    place = SyncPlace(server.url(server.database(), "psycopg"))
    place.prepare()
    invoke("outbox", "create", "--database", place.url)
    invoke("projections", "create", "--database", place.url)
    place.url = place.url.replace("psycopg", driver)
    return place


async def is_unavailable(operated: Operated, because: str = "") -> None:
    """Each path and each page says in a line that, and why, the database can't be had."""
    for path in PATHS:
        answer = await operated.get(path)
        assert (answer.status_code, answer.json()["title"]) == (503, "Database Unavailable")
        assert because in answer.json()["detail"]
        assert "\n" not in answer.json()["detail"]
        assert PASSWORD not in answer.text
    for path in PAGES:
        page = await operated.browser.open(path)
        assert (page.status, because in page.text, PASSWORD in page.text) == (503, True, False)
        assert "Overview" in page.text, "with the menu"
    page = await operated.browser.open()
    assert (page.status, PASSWORD in page.text) == (200, False)
    assert "What waits in the consumers' database is not known: " in page.text
    found = await operated.browser.send((await operated.browser.open("/find")).form("/find"), what="a")
    assert (found.status, "The consumers' database was not searched: " in found.text) == (200, True)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("before", ["", "/"])
async def test_a_database_that_is_away_is_said_to_be_and_nothing_else_is_held_up(driver: str, before: str) -> None:
    url = f"postgresql+{driver}://shop:{before}{PASSWORD}@127.0.0.1:{free_port()}/shop"
    async with operating(url) as there:
        await there.browser.log_in(READER)
        await is_unavailable(there, f"postgresql+{driver}")


async def test_an_option_that_the_driver_does_not_know_is_a_line_too() -> None:
    async with operating(f"postgresql+asyncpg://shop@127.0.0.1:{free_port()}/shop?passwd={PASSWORD}") as there:
        await there.browser.log_in(READER)
        await is_unavailable(there, "are the URL's options its own?")


async def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    async with operating(f"sqlite:///{tmp_path}/shop.db") as there:
        await there.browser.log_in(READER)
        await is_unavailable(there, "there is no such file")
        await is_unavailable(there, "there is no such file")  # so that it was not made by the first time


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_silent_database_is_given_up_in_time_by_few_threads(own_server: PostgreSQLServer, driver: str) -> None:
    place, before = own_place(own_server, driver), {*threading.enumerate()}
    async with operating(place.url) as there:
        await there.browser.log_in(READER)
        assert [(await there.get(path)).status_code for path in PATHS] == [200] * 4
        own_server.pause()
        try:
            begun = monotonic()
            looks = [asyncio.create_task(there.get("/inbox/")) for _ in range(12)]
            await asyncio.sleep(0)
            assert (await there.client.get("/_oncegate/healthz")).status_code == 200
            assert not any(each.done() for each in looks), "it answers beside them"
            answers = await asyncio.gather(*looks)
            assert {each.status_code for each in answers} == {503}
            assert {"no answer within" in each.text for each in answers} == {True}
            assert monotonic() - begun < 60
            threads = {each for each in threading.enumerate() if each.name.startswith("oncegate-database")}
            assert 0 < len(threads - before) <= 4
            await is_unavailable(there)
        finally:
            own_server.resume()

        async def answers_again() -> bool:
            return (await there.get("/inbox/")).status_code == 200

        await until(answers_again, "it answers again")


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_change_that_is_not_answered_in_time_is_in_the_audit_as_one_that_may_be(
    own_server: PostgreSQLServer, driver: str
) -> None:
    place = own_place(own_server, driver)
    await asyncio.to_thread(parks, SyncPlace(place.url.replace("asyncpg", "psycopg")))
    async with operating(place.url) as there:
        own_server.pause()
        try:
            skip = partial(there.post, "/inbox/skip", consumer="ledger", aggregate="a", sequence=1, reason="withdrawn")
            assert (await skip()).status_code == 503
        finally:
            own_server.resume()
        (line,) = await there.audit()
        assert line == (
            "will", "number 1 of a at ledger", "skipped (perhaps: the database has not answered)", "withdrawn",
        )  # fmt: skip

        async def is_skipped() -> bool:
            return (await skip()).status_code == 200

        await until(is_skipped, "nothing of it was done, or is in the way")


@pytest.mark.usefixtures("hasty")
async def test_a_change_behind_a_lock_ends_in_time_and_changes_nothing(own_server: PostgreSQLServer) -> None:
    place = own_place(own_server, "psycopg")
    await asyncio.to_thread(parks, place)
    async with operating(place.url) as there:
        with place.engine.connect() as other:
            other.exec_driver_sql("SELECT 1 FROM oncegate_order FOR UPDATE")
            await there.browser.log_in()
            page = await there.browser.open("/order")
            link = next(each for each in page.links() if "/order/aggregate?" in each)
            form = (await there.browser.open(link)).form("/order/aggregate")
            done = await there.browser.send(form, do="skip", reason="withdrawn")
            assert done.status == 503
            other.rollback()
        (left,) = (await there.get("/inbox/")).json()["waiting"]
        assert (left["waits_for"], left["behind"]) == (1, 2)

        async def is_alone() -> bool:
            busy = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            return bool(await asyncio.to_thread(lambda: place.execute(busy)[0][0] == 0))

        await until(is_alone, "the server goes on with no statement, and keeps no connection")


@pytest.mark.parametrize("shop", ["asyncpg", "psycopg", "pysqlite"], indirect=True)
async def test_no_statement_runs_in_the_thread_that_serves(shop: Place, operated: Operated) -> None:
    await operated.in_a_thread(parks, shop)
    threads: set[str] = set()

    def seen(*_: Any) -> None:
        threads.add(threading.current_thread().name)

    event.listen(Engine, "before_cursor_execute", seen)
    try:
        for path in PATHS:
            assert (await operated.get(path)).status_code == 200
        await operated.post("/inbox/skip", consumer="ledger", aggregate="a", sequence=1, reason="x")
    finally:
        event.remove(Engine, "before_cursor_execute", seen)
    assert threads
    assert threading.current_thread().name not in threads


@pytest.mark.parametrize(
    "wrong",
    [
        "shop.db",
        "mysql://u:hunter2hunter2@h/shop",
        "postgresql://u:hunter2hunter2@h/shop",
        "postgresql+psycopg2://u:hunter2hunter2@h/shop",
        "redis://u:hunter2hunter2@h",
        "sqlite://",
        "postgresql+asyncpg://u:hunter2hunter2@h/shop two",
    ],
)
def test_another_url_is_refused_in_a_line_that_repeats_nothing_of_it(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEGATE_OPS_DATABASE", wrong)
    with pytest.raises(ConfigurationError) as refused:
        load({"upstream": "http://127.0.0.1:1"})
    line = str(refused.value)
    assert line.startswith("ops_database (ONCEGATE_OPS_DATABASE): must be a URL of SQLAlchemy's")
    assert "hunter2" not in line
    assert "\n" not in line


def settings(url: str, **more: Any) -> GatewaySettings:
    return GatewaySettings(upstream="http://127.0.0.1:1", ops_database=url, **more)


def test_a_driver_that_is_missing_and_a_port_that_is_none_end_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"^ops_database: is no URL that SQLAlchemy takes; is the port"):
        create_gateway(settings(f"postgresql+asyncpg://u:{PASSWORD}@h:{PASSWORD}/shop"))
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ConfigurationError, match=r"^ops_database: asyncpg is not installed: pip install"):
        create_gateway(settings("postgresql+asyncpg://h/shop"))


@pytest.mark.parametrize("before", ["", "/", "?", "#"])
def test_its_credentials_are_shown_nowhere(before: str) -> None:
    url = f"postgresql+asyncpg://shop:{before}{PASSWORD}@h/shop?options={PASSWORD}"
    made = settings(url)
    assert PASSWORD not in repr(made)
    other = settings(url.replace(PASSWORD, "another"))
    assert settings_digest(made) == settings_digest(other) != settings_digest(settings(""))
    done = invoke("config", "--upstream", "http://127.0.0.1:1", ONCEGATE_OPS_DATABASE=url)
    assert "# ops_database is set, and left out" in done.stdout
    assert PASSWORD not in done.stdout


@pytest.mark.parametrize("shop", ["asyncpg", "pysqlite"], indirect=True)
async def test_check_says_whether_it_can_be_seen(shop: Place, tmp_path: Path) -> None:
    async def found(url: str) -> list[tuple[Severity, str]]:
        return [(each.severity, each.text) for each in await examine(settings(url)) if each.area == "database"]

    assert await found("") == []
    shows = "ops_database answers, and shows aggregates, outbox, projections"
    assert await found(shop.url) == [(Severity.GOOD, shows)]
    ((severity, line),) = await found(f"postgresql+asyncpg://u:{PASSWORD}@127.0.0.1:{free_port()}/shop")
    assert (severity, PASSWORD in line) == (Severity.ADVICE, False)
    assert "operators see nothing of it until it answers" in line
    (tmp_path / "empty.db").touch()
    ((severity, line),) = await found(f"sqlite:///{tmp_path}/empty.db")
    assert (severity, "has no table" in line) == (Severity.ADVICE, True)


@pytest.mark.parametrize("shop", ["pysqlite"], indirect=True)
async def test_a_reload_takes_another_database(shop: Place, tmp_path: Path) -> None:
    async with (
        Upstream(answering(OK)) as upstream,
        reloadable(upstream.url, admin_tokens=TOKENS) as (client, own, _, written),
    ):
        headers = {"authorization": f"Bearer {READER}"}
        assert (await client.get("/_oncegate/inbox/", headers=headers)).status_code == 404
        written.write(admin_tokens=TOKENS, ops_database=shop.url)
        assert (await own.reload()).refusal == ""
        assert (await client.get("/_oncegate/inbox/", headers=headers)).json() == {"waiting": [], "cursor": ""}
        written.write(admin_tokens=TOKENS, ops_database="sqlite:///no:such?x=%")
        written.write(admin_tokens=TOKENS, ops_database=f"postgresql+asyncpg://u:p@h:{PASSWORD}/x")
        refused = (await own.reload()).refusal
        assert "ops_database: is no URL" in refused
        assert PASSWORD not in refused
        assert (await client.get("/_oncegate/inbox/", headers=headers)).status_code == 200
        written.write(admin_tokens=TOKENS)
        assert (await own.reload()).refusal == ""
        assert (await client.get("/_oncegate/inbox/", headers=headers)).status_code == 404


def test_without_a_database_neither_sqlalchemy_nor_its_pages_are_loaded() -> None:
    code = (
        "import asyncio, sys\n"
        "from oncegate.app.factory import create_gateway\n"
        "from oncegate.app.settings.gateway import GatewaySettings\n"
        "gateway = create_gateway(GatewaySettings(upstream='http://127.0.0.1:9'), admin_token='t' * 20)\n"
        "asyncio.run(gateway.operations.load())\n"
        "wrong = ('sqlalchemy', 'oncegate.sql', 'oncegate.app.operators.console.database.order')\n"
        "print([name for name in wrong if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr

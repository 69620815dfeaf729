"""`oncegate project` and `oncegate projections`, and what `oncegate check --database` says of projections.

Rules of docs/contract.md: R11.22, R12.51.
"""

import json
from functools import partial
from urllib.request import urlopen

import pytest

from testing.command_line import OPERATOR, invoke, running
from testing.servers import free_port
from testing.waiting import wait_until
from tests.sql.places import Place, SyncPlace
from tests.sql.projections.accounts import Ledger, applied, applied_count, balances, position

on_both = pytest.mark.parametrize("place", ["asyncpg", "aiosqlite"], indirect=True)
PROJECTIONS = ("tests.sql.projections.shop:balance", "tests.sql.projections.shop:history")


@on_both
def test_what_a_projection_stands_at_is_shown_and_skipped(place: Place) -> None:
    ledger, port = Ledger(), free_port()
    ledger.produce(place, "a", "bad", "a", "b")
    listed = partial(invoke, "projections", ONCEGATE_PROJECTIONS_DATABASE=place.url)
    options = ["--database", place.url, "--log-format", "text", "--log-every", "0.3", "--metrics-port", str(port)]
    with running("project", *PROJECTIONS, *options) as process:
        process.wait_for("projection balance.v1 stands at position 2 since .*LookupError: no such account")
        process.wait_for("projection history.v1: 0 rows behind")
        (balance, history) = json.loads(listed("list", "--json").stdout)["projections"]
        assert (balance["name"], balance["behind"], balance["stuck_at"]) == ("balance.v1", 3, 2)
        assert balance["reason"] == "LookupError: no such account"
        assert (history["name"], history["behind"], history["stuck_at"]) == ("history.v1", 0, None)
        assert "LookupError" in listed("list").stdout
        assert "attempts" in listed("show", "balance.v1").stdout
        assert listed("show", "other").returncode == 1
        checked = invoke("check", "--database", place.url).stdout
        assert "balance.v1: 3 rows behind, stands at position 2 since" in checked
        assert "history.v1: 0 rows behind" in checked
        assert invoke("check", "--database", place.url, "--strict").returncode == 1
        metrics = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        assert 'oncegate_projection_stuck_position{projection="balance.v1"} 2.0' in metrics
        assert 'oncegate_projection_rows_behind{projection="history.v1"} 0.0' in metrics
        for wrong in ("1", "3"):
            refused = listed("skip", "balance.v1", "--position", wrong, "--reason", "no")
            assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
            assert "stands at position 2" in refused.stderr
        assert listed("skip", "balance.v1", "--position", "2").returncode == 2, "a reason is needed"
        skipped = listed("skip", "balance.v1", "--position", "2", "--reason", "a mistake")
        assert skipped.stdout == "skipped 2 of balance.v1\n"
        line = f"oncegate.audit: position 2 of projection balance.v1: skipped by {OPERATOR}: a mistake\n"
        assert skipped.stderr == line
        wait_until(lambda: applied_count(place) == 3, "it goes on")
        assert process.stop() == 0
    assert "projection balance.v1 has stopped" in process.output
    assert applied(place) == {"a": [1, 2], "b": [1]}
    assert "bad" not in balances(place)
    assert position(place).failed_at is None
    refused = listed("skip", "balance.v1", "--position", "2", "--reason", "again")
    assert "stands at no event" in refused.stderr


@on_both
def test_check_says_where_nobody_applies_events(place: Place) -> None:
    ledger = Ledger()
    ledger.produce(place, "a")
    described = {"table": "events", "schema": None, "position": "position"}
    described["transaction"] = "transaction" if place.is_postgresql else None
    place.execute(
        'INSERT INTO oncegate_projection (name, "transaction", position, ahead, events)'
        " VALUES ('idle', 0, 0, '[]', :events), ('lost', 0, 0, '[]', :lost)",
        events=json.dumps(described),
        lost=json.dumps(described | {"table": "gone"}),
    )
    checked = invoke("check", "--database", place.url).stdout
    assert "idle: 1 rows behind, and nothing was applied yet: does it run? oncegate project" in checked
    assert "lost: an unknown number of rows behind" in checked


@pytest.mark.parametrize("place", ["aiosqlite"], indirect=True)
@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("no_such_module:x", "can't be imported"),
        ("json", "give package.module:projection"),
        ("json:dumps", "is a function: no Projection"),
        ("tests.sql.projections.shop:plain", "an AsyncEngine is for a coroutine function"),
    ],
)
def test_what_can_t_be_run_ends_with_one_line(place: Place, target: str, line: str) -> None:
    refused = invoke("project", target, "--database", place.url)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
    assert line in refused.stderr


@pytest.mark.parametrize("place", ["pysqlite"], indirect=True)
def test_without_its_table_it_says_how_to_make_it(place: Place) -> None:
    place.execute("DROP TABLE oncegate_projection")
    refused = invoke("project", "tests.sql.projections.shop:plain", "--database", place.url)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1), refused.stderr
    assert f"oncegate projections create --database {place.url}" in refused.stderr
    listed = invoke("projections", "list", "--database", place.url)
    assert "oncegate projections create" in listed.stderr
    assert invoke("projections", "create", "--database", place.url).stdout == "created\n"
    assert invoke("projections", "create", "--database", place.url).stdout == "it is there already\n"
    assert json.loads(invoke("projections", "list", "--database", place.url, "--json").stdout) == {"projections": []}
    printed = invoke("projections", "create", "--database", "sqlite://", "--print").stdout
    other = SyncPlace(place.url.replace("app.db", "other.db"))
    for statement in printed.split(";\n"):
        other.execute(statement)
    assert invoke("projections", "create", "--database", other.url).stdout == "it is there already\n"

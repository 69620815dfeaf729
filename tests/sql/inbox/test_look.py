"""`oncegate inbox show` and `oncegate inbox stats`: what operators see of the inbox, and that nothing reads a large table."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from oncegate.middleware.rules.keys.key import record_id, record_key
from oncegate.prometheus import ConsumerMetrics
from oncegate.sql import Inbox
from testing.command_line import invoke
from testing.postgresql import PostgreSQLServer
from testing.servers import free_port
from testing.waiting import wait_until
from tests.sql.places import Place, SyncPlace

billing, mail = Inbox("billing", aliases=["payments"]), Inbox("mail")
LINE = re.compile(
    r"(\w+)  received \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ, .* ago,"
    r" (no result|a result of \d+ bytes), (no fingerprint|fingerprint \w{32})"
)
MANY = 300_000


def shown(place: Place, *arguments: str) -> list[tuple[str, ...]]:
    done = invoke("inbox", "show", *arguments, "--database", place.url)
    assert (done.returncode, done.stderr) == (0, "")
    found = [LINE.fullmatch(line) for line in done.stdout.splitlines()]
    return [each.groups() for each in found if each is not None] if None not in found else [(done.stdout,)]


def test_a_message_is_shown_by_its_key_and_by_its_record(place: Place) -> None:
    place.deliver(billing, "order-7", payload=b"5", keep={"paid": 5})
    place.deliver(mail, "order-7")
    place.deliver(mail, "order-7", caller="shop")
    record = record_id(record_key("inbox", "order-7", None))
    digest = place.execute("SELECT fingerprint FROM oncegate_inbox WHERE consumer = 'billing'")[0].fingerprint
    fingerprint = f"fingerprint {digest if isinstance(digest, str) else bytes(digest).hex()}"
    lines = [
        ("billing", "a result of 10 bytes", fingerprint),
        ("mail", "no result", "no fingerprint"),
        ("payments", "a result of 10 bytes", fingerprint),
    ]
    assert shown(place, "order-7") == shown(place, record) == lines
    assert shown(place, "order-7", "--caller", "shop") == [("mail", "no result", "no fingerprint")]
    document = json.loads(invoke("inbox", "show", record, "--json", ONCEGATE_INBOX_DATABASE=place.url).stdout)
    assert document["record"] == record
    assert [each["consumer"] for each in document["markers"]] == ["billing", "mail", "payments"]
    assert document["markers"][0]["result_bytes"] == 10
    age = datetime.now(UTC) - datetime.fromisoformat(document["markers"][0]["received_at"])
    assert abs(age) < timedelta(minutes=5)


def test_a_message_without_a_marker(place: Place) -> None:
    done = invoke("inbox", "show", "order-7", "--database", place.url)
    record = record_id(record_key("inbox", "order-7", None))
    line = f"oncegate: record {record}: no marker: nobody has processed it, or it was rolled back, or is forgotten\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)
    done = invoke("inbox", "show", "order-7", "--json", "--database", place.url)
    assert (done.returncode, json.loads(done.stdout)) == (1, {"record": record, "markers": []})
    done = invoke("inbox", "show", "", "--database", place.url)
    assert (done.returncode, done.stderr.count("\n"), "Traceback" in done.stderr) == (2, 1, False)


def test_a_small_table_is_counted(place: Place) -> None:
    assert invoke("inbox", "stats", "--database", place.url).stdout == "oncegate_inbox  0 rows\noldest  not known\n"
    for key in ("a", "b"):
        place.deliver(billing, key)
    place.deliver(mail, "a")
    lines = invoke("inbox", "stats", "--database", place.url).stdout.splitlines()
    assert re.fullmatch(r"oldest  \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ, .* ago", lines.pop(1))
    assert lines == ["oncegate_inbox  5 rows", "billing  2 rows", "mail  1 rows", "payments  2 rows"]
    document = json.loads(invoke("inbox", "stats", "--json", "--database", place.url).stdout)
    assert document.pop("oldest").endswith("+00:00")
    counts = {"billing": 2, "mail": 1, "payments": 2}
    assert document == {"table": "oncegate_inbox", "rows": 5, "estimated": False, "consumers": counts}


def test_an_inbox_measures_its_table_for_metrics(place: Place) -> None:
    registry = CollectorRegistry()
    measured = Inbox("billing", watch=ConsumerMetrics("billing", registry=registry))
    place.run(measured.measure)
    labels = {"table": "oncegate_inbox"}
    assert registry.get_sample_value("oncegate_inbox_rows", labels) == 0
    place.deliver(measured, "a")
    found = place.run(measured.measure)
    assert registry.get_sample_value("oncegate_inbox_rows", labels) == 1
    oldest = registry.get_sample_value("oncegate_inbox_oldest_timestamp_seconds", labels)
    assert oldest == found.oldest.timestamp()


def test_a_large_table_of_postgresql_is_estimated_and_not_read(
    own_place: SyncPlace, postgresql: PostgreSQLServer
) -> None:
    own_place.execute(
        "INSERT INTO oncegate_inbox (received_at, consumer, message) SELECT now() - make_interval(secs => n),"
        " CASE WHEN n % 4 = 0 THEN 'mail' ELSE 'billing' END, decode(lpad(to_hex(n), 60, '0'), 'hex')"
        " FROM generate_series(1, :many) AS n",
        many=MANY,
    )
    postgresql.execute("ANALYZE oncegate_inbox", own_place.url.rpartition("/")[2])
    reads = "SELECT idx_scan, seq_tup_read FROM pg_stat_user_tables WHERE relname = 'oncegate_inbox'"
    wait_until(lambda: own_place.execute(reads)[0].seq_tup_read is not None, "there are statistics")
    (before,) = own_place.execute(reads)
    document = json.loads(invoke("inbox", "stats", "--json", "--database", own_place.url).stdout)
    assert document["estimated"]
    assert document["rows"] == pytest.approx(MANY, rel=0.2)
    assert document["consumers"] == pytest.approx({"billing": MANY * 3 / 4, "mail": MANY / 4}, rel=0.3)
    age = datetime.now(UTC) - datetime.fromisoformat(document["oldest"])
    assert age.total_seconds() == pytest.approx(MANY, rel=0.2)
    record = record_id(record_key("inbox", "order-7", None))
    assert invoke("inbox", "show", record, "--database", own_place.url).returncode == 1
    # The index was used, by both; once that is seen, so would be what was read otherwise.
    wait_until(lambda: own_place.execute(reads)[0].idx_scan >= before.idx_scan + 6, "what was read is known")
    assert own_place.execute(reads)[0].seq_tup_read == before.seq_tup_read
    assert invoke("inbox", "stats", "--database", own_place.url).stdout.startswith("oncegate_inbox  about ")


def test_a_large_table_of_sqlite_is_estimated(tmp_path: Path) -> None:
    place = SyncPlace(f"sqlite:///{tmp_path}/app.db")
    place.prepare()
    place.execute(
        "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < :many)"
        " INSERT INTO oncegate_inbox (received_at, consumer, message)"
        " SELECT datetime('now', (n - :many) || ' seconds'), 'billing', n FROM n",
        many=MANY,
    )
    document = json.loads(invoke("inbox", "stats", "--json", "--database", place.url).stdout)
    age = datetime.now(UTC) - datetime.fromisoformat(document.pop("oldest"))
    assert age.total_seconds() == pytest.approx(MANY, rel=0.01)
    assert document == {"table": "oncegate_inbox", "rows": MANY, "estimated": True, "consumers": {"billing": None}}
    assert "billing  not counted" in invoke("inbox", "stats", "--database", place.url).stdout


@pytest.mark.parametrize("command", [("show", "order-7"), ("stats",)])
def test_errors_are_one_line(postgresql: PostgreSQLServer, tmp_path: Path, command: tuple[str, ...]) -> None:
    def refusal(database: str, *arguments: str) -> tuple[int, str]:
        done = invoke("inbox", *command, "--database", database, *arguments)
        assert (done.stdout, done.stderr.count("\n")) == ("", 1)
        return done.returncode, done.stderr.removeprefix("oncegate: ").strip()

    for driver in ("psycopg", "asyncpg"):
        url = postgresql.url(postgresql.database(), driver)
        line = f"there is no table oncegate_inbox: oncegate inbox create --database {url}"
        assert refusal(url) == (1, line)
        assert refusal(url, "--schema", "shop") == (1, line.replace("table ", "table shop.") + " --schema shop")
        away = f"postgresql+{driver}://postgres:secret@127.0.0.1:{free_port()}/app"
        code, text = refusal(away)
        assert (code, text.startswith(f"postgresql+{driver}://postgres:***@127.0.0.1:"), "secret" in text) == (
            1,
            True,
            False,
        )
    missing = f"sqlite:///{tmp_path}/missing.db"
    assert refusal(missing) == (1, f"{missing}: there is no such file")
    assert not (tmp_path / "missing.db").exists()
    assert refusal("mysql://shop")[0] == refusal("no url")[0] == 2

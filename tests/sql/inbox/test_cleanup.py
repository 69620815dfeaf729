"""`oncegate inbox cleanup`: what it deletes, shows and refuses; the roles; and how large a marker is.

Rules of docs/contract.md: R12.15.
"""

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from redis import Redis

from oncegate.cache.redis.streams.stream import stream_key
from oncegate.sql import Forgotten, Inbox, InboxMisused
from testing.command_line import invoke
from testing.servers import RedisServer
from tests.sql.aging import age, ago, clean
from tests.sql.conftest import ON_SQLITE
from tests.sql.places import Place, SyncPlace

billing = Inbox("billing")


@pytest.mark.parametrize("place", ON_SQLITE, indirect=True)
def test_the_command_forgets(place: Place) -> None:
    for consumer in ("billing", "shipping"):
        place.deliver(Inbox(consumer), "a")
    age(place)
    counted = json.loads(invoke("inbox", "cleanup", "--database", place.url, "--dry-run", "--json").stdout)
    assert (counted["found"], counted["pruned"], counted["dry_run"]) == (2, 0, True)
    one = invoke("inbox", "cleanup", "--database", place.url, "--consumer", "billing", "--batch-size", "1")
    assert one.stdout.startswith("1 found, 1 deleted: those marked before 20")
    rest = json.loads(invoke("inbox", "cleanup", "--database", place.url, "--json").stdout)
    assert (rest["found"], rest["pruned"]) == (1, 1)
    with pytest.raises(Forgotten):
        place.deliver(billing, "b", sent_at=ago(days=8))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--batch-size", "0"], "the batch size is 1 or more"),
        (["--retention-hours", "-1"], "an age: 0 or more"),
        (["--retention-hours", "3"], "below the redelivery horizon of 24 h"),
        (["--retention-hours", "3", "--redelivery-horizon-hours", "4"], "below the redelivery horizon of 4 h"),
    ],
)
def test_what_would_forget_too_much_is_refused_in_one_line(tmp_path: Path, arguments: list[str], text: str) -> None:
    done = invoke("inbox", "cleanup", "--database", f"sqlite:///{tmp_path}/app.db", *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert text in done.stderr


def test_without_its_table_that_is_one_line(tmp_path: Path) -> None:
    done = invoke("inbox", "cleanup", "--database", f"sqlite:///{tmp_path}/app.db")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


@pytest.mark.parametrize("place", ["pysqlite"], indirect=True)
def test_what_the_worker_may_still_get_is_kept(place: Place, redis_server: RedisServer, tmp_path: Path) -> None:
    """Neither what its group has not acknowledged may be forgotten, nor what it has not read."""
    config = tmp_path / "gateway.toml"
    config.write_text(f'cache = "{redis_server.url}"\nnamespace = "forgets"\n')
    key = stream_key("forgets", "commands")
    redis = Redis.from_url(redis_server.url)
    place.deliver(billing, "a")
    age(place, days=8)
    entries = [f"{int(ago(days=days).timestamp() * 1000)}-1" for days in (9, 7.5, 1)]
    for entry in entries:
        redis.xadd(key, {"v": "1"}, entry)

    def found() -> int:
        done = invoke("inbox", "cleanup", "--database", place.url, "--config", str(config), "--dry-run", "--json")
        return int(json.loads(done.stdout)["found"])

    assert found() == 0  # no group has read the oldest
    redis.xgroup_create(key, "commands", "0")
    assert found() == 0
    redis.xreadgroup("commands", "worker", {key: ">"}, count=1)
    assert found() == 0
    redis.xack(key, "commands", entries[0])
    assert found() == 1  # the next one is younger


def test_its_instant_is_that_of_utc_in_a_session_of_another_zone(own_place: SyncPlace) -> None:
    own_place.execute(f"ALTER DATABASE {own_place.engine.url.database} SET timezone = 'Asia/Tokyo'")
    done = invoke("inbox", "cleanup", "--database", own_place.url, "--dry-run", "--json")
    assert abs(datetime.fromisoformat(json.loads(done.stdout)["until"]) - ago(days=7)) < timedelta(hours=1)


@pytest.fixture
def roles(own_place: SyncPlace) -> tuple[Place, Place, Place]:
    """A database's owner, a consumer and a cleaner."""
    owner, name = own_place, own_place.engine.url.database
    for role, rights in (("consumer", "SELECT, INSERT, UPDATE"), ("cleaner", "SELECT, INSERT, UPDATE, DELETE")):
        owner.execute(f"CREATE ROLE {role}_{name} LOGIN")
        owner.execute(f"GRANT {rights} ON oncegate_inbox TO {role}_{name}")
    owner.execute(f"GRANT INSERT ON effects TO consumer_{name}")
    consumer, cleaner = (
        SyncPlace(owner.url.replace("postgres@", f"{role}_{name}@")) for role in ("consumer", "cleaner")
    )
    return owner, consumer, cleaner


def test_a_consumer_s_role_can_not_delete_and_a_cleaner_s_role_can(roles: tuple[Place, Place, Place]) -> None:
    owner, consumer, cleaner = roles
    assert consumer.deliver(billing, "a", keep=7).first
    assert consumer.deliver(billing, "a").result == 7
    age(owner)
    done = invoke("inbox", "cleanup", "--database", consumer.url)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "permission denied" in done.stderr
    assert clean(cleaner).pruned == 1
    with pytest.raises(Forgotten):
        consumer.deliver(billing, "a", sent_at=ago(days=8))
    owner.execute(f"REVOKE SELECT ON oncegate_inbox FROM {consumer.url.split('//')[1].split('@')[0]}")
    with pytest.raises(InboxMisused, match="INSERT, SELECT and UPDATE"):
        consumer.deliver(billing, "b")


def test_a_marker_takes_180_bytes_at_most_with_its_indexes(own_place: SyncPlace) -> None:
    own_place.execute(
        "INSERT INTO oncegate_inbox (received_at, consumer, message, fingerprint) SELECT now(), 'billing', "
        "substring(sha256(number::text::bytea) FOR 30), substring(sha256(number::text::bytea) FOR 16) "
        "FROM generate_series(1, 50000) AS number".replace("::", "\\:\\:")
    )
    assert own_place.execute("SELECT pg_total_relation_size('oncegate_inbox') / 50000 AS bytes")[0].bytes <= 180


def test_a_message_can_be_read_in_sql(own_place: SyncPlace) -> None:
    """By the expression of docs/inbox.md, and the other way round by that beside the column's type."""
    own_place.deliver(billing, "a")
    ((_, record),) = own_place.markers()
    found = own_place.execute(
        "SELECT consumer FROM oncegate_inbox WHERE message = decode(translate(:record, '._\\:', '+/'), 'base64')",
        record=record,
    )
    assert [row.consumer for row in found] == ["billing"]

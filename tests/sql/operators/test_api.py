"""What waits in the consumers' database, by the API under the prefix: as the command line has it, on each database.

Rules of docs/contract.md: R11.60, R11.61, R11.62, R11.66.
"""

import asyncio
import logging
from functools import partial
from typing import Any

import pytest

from testing.command_line import invoke
from tests.sql.handlers.parking import parked, sweep
from tests.sql.operators.conftest import operating
from tests.sql.operators.looking import HOSTILE, READER, Operated, by_command, parks, refused, stands
from tests.sql.outbox.sinks import waiting
from tests.sql.places import Place


async def test_what_waits_is_as_the_command_line_has_it_and_follows_what_was_skipped(
    shop: Place, operated: Operated
) -> None:
    ledger, _ = await operated.in_a_thread(parks, shop)
    listed = (await operated.get("/inbox/")).json()
    assert listed == (await asyncio.to_thread(by_command, shop, "inbox", "waiting")) | {"cursor": ""}
    (found,) = listed["waiting"]
    assert (found["aggregate"], found["waits_for"], found["behind"]) == ("a", 1, 2)
    assert found["reason"] == "NotRetryable: no such account"
    assert (await operated.post("/inbox/find", READER, aggregate="a")).json() == listed
    assert (await operated.post("/inbox/find", READER, aggregate="b")).json()["waiting"] == []
    totals = (await operated.get("/database/")).json()
    assert totals["aggregates"] == {"waiting": 1, "parked": 3, "oldest": found["since"]}

    skip = partial(operated.post, "/inbox/skip", consumer="ledger", aggregate="a", reason="withdrawn")
    wrong = await skip(sequence=2)
    assert (wrong.status_code, wrong.json()["detail"]) == (
        409, "the last applied number of this aggregate is 0: only 1 can be skipped",
    )  # fmt: skip
    done = await skip(sequence=1)
    assert done.json() == {"skipped": 1, "behind": 2}
    assert await operated.audit() == [("will", "number 1 of a at ledger", "skipped", "withdrawn")]
    await operated.in_a_thread(sweep, ledger, lambda: not [each for each in parked(shop) if each > 1])
    assert await operated.in_a_thread(shop.effects) == ["a002", "a003"]
    assert (await skip(sequence=1)).status_code == 409


async def test_a_parked_message_that_has_failed_is_tried_again(shop: Place, operated: Operated) -> None:
    ledger, broken = await operated.in_a_thread(parks, shop)
    broken.clear()
    done = await operated.post("/inbox/retry", consumer="ledger", aggregate="a", reason="mended")
    assert done.json() == {"retried": 1}
    await operated.in_a_thread(sweep, ledger, lambda: not parked(shop))
    assert await operated.in_a_thread(shop.effects) == ["a001", "a002", "a003"]
    assert await operated.audit() == [("will", "number 1 of a at ledger", "retried", "mended")]
    again = await operated.post("/inbox/retry", consumer="ledger", aggregate="a", reason="mended")
    assert again.status_code == 409
    assert len(await operated.audit()) == 1


async def test_a_long_list_is_had_in_pieces_that_leave_nothing_out(shop: Place, operated: Operated) -> None:
    names = [f"{number}{HOSTILE}" for number in range(7)]
    for name in names:
        await operated.in_a_thread(partial(parks, shop, aggregate=name))
    # The same instant for some: the order among these decides, too.
    await operated.in_a_thread(
        shop.execute, "UPDATE oncegate_parked SET parked_at = (SELECT min(parked_at) FROM oncegate_parked)"
    )
    whole = (await operated.get("/inbox/", limit=1000)).json()["waiting"]
    seen: list[Any] = []
    cursor = ""
    for _ in range(4):
        page = (await operated.get("/inbox/", limit=2, cursor=cursor)).json()
        seen, cursor = seen + page["waiting"], page["cursor"]
    assert (seen, cursor) == (whole, "")
    assert sorted(each["aggregate"] for each in seen) == names
    for wrong in ("x", "1.a", "1.a.zz", "9" * 99 + ".a.00"):
        assert (await operated.get("/inbox/", cursor=wrong)).status_code == 400


async def test_markers_are_shown_by_the_records_id(shop: Place, operated: Operated) -> None:
    await operated.in_a_thread(parks, shop)
    (found,) = (await operated.get("/inbox/")).json()["waiting"]
    answer = (await operated.get(f"/inbox/{found['record']}")).json()
    assert answer == await asyncio.to_thread(by_command_or_none, shop, found["record"])
    assert (await operated.get("/inbox/no-id")).status_code == 400


def by_command_or_none(place: Place, record: str) -> dict[str, object]:
    done = invoke("inbox", "show", record, "--json", "--database", place.url)
    assert done.returncode == 1
    return {"record": record, "markers": []}


async def test_messages_are_listed_retried_and_discarded(shop: Place, operated: Operated) -> None:
    number = await refused(shop, "a", "a", None)
    listed = (await operated.get("/outbox/")).json()
    by_line = (await asyncio.to_thread(by_command, shop, "outbox", "list"))["messages"]
    assert [each | {"key": "", "headers": {}} for each in listed["messages"]] == [
        each | {"key": "", "headers": {}} for each in by_line
    ]
    assert not any({"key", "headers", "body"} & {*each} for each in listed["messages"])
    (held,) = (await operated.get("/outbox/", held=True)).json()["messages"]
    assert (held["id"], held["state"], held["refusal"]) == (number, "dead", "ValueError: no")
    first = (await operated.get("/outbox/", limit=1)).json()
    rest = (await operated.get("/outbox/", limit=1000, after=first["after"])).json()
    assert [*first["messages"], *rest["messages"]] == listed["messages"]
    assert rest["after"] == 0
    assert len((await operated.post("/outbox/find", READER, aggregate="a")).json()["messages"]) == 2
    whole = (await operated.get(f"/outbox/{number}", body=True)).json()
    assert whole == await asyncio.to_thread(by_command, shop, "outbox", "show", str(number), "--body")
    assert (await operated.get("/database/")).json()["outbox"] == {"waiting": 2, "held": 1, "dead": 1}

    assert (await operated.post("/outbox/retry", reason="mended")).json() == {"retried": 1}
    assert (await operated.get(f"/outbox/{number}")).json()["state"] == "waiting"
    assert (await operated.post(f"/outbox/{number}/retry", reason="again")).json() == {"retried": 1}
    assert (await operated.post(f"/outbox/{number}/discard", reason="wrong")).json() == {"discarded": number}
    assert await operated.in_a_thread(waiting, shop) == [("a", 2)]
    gone = f"message {number}: it is not there: it was published, discarded, or never committed"
    for change in ("retry", "discard"):
        missing = await operated.post(f"/outbox/{number}/{change}", reason="wrong")
        assert (missing.status_code, missing.json()["detail"]) == (404, gone)
    assert (await operated.get(f"/outbox/{number}")).status_code == 404
    assert await operated.audit() == [
        ("will", f"message {number} of orders to payments, number 1 of a", "discarded", "wrong"),
        ("will", f"1 of messages {number} of the outbox", "retried", "again"),
        ("will", "1 of messages (all dead) of the outbox", "retried", "mended"),
        ("rita", f"message {number} of orders to payments, number 1 of a", "its key and body shown", ""),
    ]


async def test_an_event_at_which_a_projection_stands_is_skipped(shop: Place, operated: Operated) -> None:
    await operated.in_a_thread(stands, shop)
    listed = (await operated.get("/projections/")).json()
    assert listed == await asyncio.to_thread(by_command, shop, "projections", "list")
    (one,) = listed["projections"]
    assert (await operated.get("/projections/balance.v1")).json() == one
    assert (await operated.get("/database/")).json()["projections"] == {"there": 1, "stuck": 1}
    wrong = await operated.post("/projections/balance.v1/skip", position=1, reason="no")
    assert (wrong.status_code, "stands at position 2" in wrong.json()["detail"]) == (409, True)
    assert (await operated.post("/projections/other/skip", position=2, reason="no")).status_code == 404
    done = await operated.post("/projections/balance.v1/skip", position=2, reason="a mistake")
    assert done.json() == {"skipped": 2}
    assert (await operated.get("/projections/balance.v1")).json()["stuck_at"] is None
    assert await operated.audit() == [("will", "position 2 of projection balance.v1", "skipped", "a mistake")]


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("/inbox/skip", {"consumer": "ledger", "aggregate": "a", "sequence": 1}),
    ("/inbox/retry", {"consumer": "ledger", "aggregate": "a"}),
    ("/outbox/retry", {}),
    ("/outbox/1/retry", {}),
    ("/outbox/1/discard", {}),
    ("/projections/balance.v1/skip", {"position": 2}),
]


@pytest.mark.parametrize("shop", ["pysqlite"], indirect=True)
async def test_who_reads_changes_nothing_and_no_change_is_without_a_reason(shop: Place, operated: Operated) -> None:
    await operated.in_a_thread(parks, shop)
    await operated.in_a_thread(stands, shop)
    await refused(shop, "a")
    looks = ("/inbox/", "/outbox/", "/projections/", "/database/")
    before = [(await operated.get(path)).json() for path in looks]
    for path, members in CHANGES:
        assert (await operated.post(path, READER, **members, reason="why")).status_code == 403
        assert (await operated.client.post(f"/_oncegate{path}", json=members)).status_code == 401
        reasons: list[dict[str, Any]] = [
            {},
            {"reason": ""},
            {"reason": "  "},
            {"reason": "two\nlines"},
            {"reason": "x" * 121},
        ]
        for reason in reasons:
            assert (await operated.post(path, **members, **reason)).status_code == 400, (path, reason)
    assert [(await operated.get(path)).json() for path in looks] == before
    assert await operated.audit() == []
    for path in looks:
        assert (await operated.client.get(f"/_oncegate{path}")).status_code == 401


async def test_no_text_of_others_makes_another_line_of_the_audit(
    shop: Place, operated: Operated, caplog: pytest.LogCaptureFixture
) -> None:
    name = "a\noncegate.audit: record 1: released by root\u202e"
    await operated.in_a_thread(partial(parks, shop, aggregate=name))
    (found,) = (await operated.get("/inbox/")).json()["waiting"]
    assert found["aggregate"] == name
    with caplog.at_level(logging.WARNING, "oncegate.audit"):
        done = await operated.post("/inbox/skip", consumer="ledger", aggregate=name, sequence=1, reason=HOSTILE)
    assert done.status_code == 200
    (line,) = [each.getMessage() for each in caplog.records if each.name == "oncegate.audit"]
    assert line.isprintable()
    assert line.endswith(HOSTILE)


@pytest.mark.parametrize("shop", ["asyncpg", "pysqlite"], indirect=True)
async def test_what_no_id_can_be_is_refused_in_a_line(shop: Place, operated: Operated) -> None:
    nul = "a\x00b"
    for path in ("/inbox/find", "/outbox/find"):
        answer = await operated.post(path, READER, aggregate=nul)
        assert answer.status_code in (200, 400)
    for path, members in (
        ("/inbox/skip", {"consumer": nul, "aggregate": "a", "sequence": 1}),
        ("/inbox/skip", {"consumer": "ledger", "aggregate": "a", "sequence": 2**63}),
        ("/inbox/skip", {"consumer": "ledger", "aggregate": "", "sequence": 1}),
        ("/projections/balance.v1/skip", {"position": 2**63}),
    ):
        assert (await operated.post(path, **members, reason="x")).status_code == 400
    assert (
        await operated.post("/inbox/skip", consumer="ledger", aggregate=nul, sequence=1, reason="x")
    ).status_code == 409
    assert (await operated.get("/outbox/99999999999999999999")).status_code == 400


async def test_without_a_database_there_are_no_paths_and_no_sqlalchemy() -> None:
    async with operating("") as there:
        for path in ("/inbox/", "/outbox/", "/projections/", "/database/"):
            answer = await there.client.get(f"/_oncegate{path}", headers={"authorization": f"Bearer {READER}"})
            assert answer.status_code == 404


@pytest.mark.parametrize("shop", ["psycopg", "pysqlite"], indirect=True)
async def test_a_database_without_these_tables_says_which_command_makes_them(shop: Place, operated: Operated) -> None:
    for table in ("oncegate_parked", "oncegate_outbox", "oncegate_projection"):
        await operated.in_a_thread(shop.execute, f"ALTER TABLE {table} RENAME TO {table}_away")
    try:
        for path, command in (("/inbox/", "inbox"), ("/outbox/", "outbox"), ("/projections/", "projections")):
            answer = await operated.get(path)
            assert (answer.status_code, f"oncegate {command} create" in answer.json()["detail"]) == (404, True)
        assert (await operated.get("/database/")).json() == {"aggregates": None, "outbox": None, "projections": None}
    finally:
        for table in ("oncegate_parked", "oncegate_outbox", "oncegate_projection"):
            await operated.in_a_thread(shop.execute, f"ALTER TABLE {table}_away RENAME TO {table}")

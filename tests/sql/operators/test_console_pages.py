"""The console's pages of the consumers' database: what they show, what they change, with a reason, by who may.

Rules of docs/contract.md: R11.63.
"""

from functools import partial
from typing import Any

import pytest

from oncegate.sql import Inbox
from tests.app.operators.console.browsing import CONSOLE, Browsed, Form
from tests.sql.handlers.parking import parked, sweep
from tests.sql.operators.conftest import operating
from tests.sql.operators.looking import HOSTILE, READER, WRITER, Operated, parks, refused, stands
from tests.sql.outbox.sinks import added, waiting
from tests.sql.places import Place

MENU = ["/order", "/outbox", "/projections"]


def menu(page: Browsed) -> list[str]:
    return [each for each in MENU if CONSOLE + each in page.links()]


async def waits(operated: Operated) -> Browsed:
    """The page of the first aggregate that waits."""
    page = await operated.browser.open("/order")
    return await operated.browser.open(next(link for link in page.links() if "/order/aggregate?" in link))


async def test_the_overview_counts_what_waits_and_leads_to_it(shop: Place, operated: Operated) -> None:
    page = await operated.browser.log_in(READER)
    assert menu(page) == MENU
    assert "Aggregates that wait 0" in page.text
    await operated.in_a_thread(parks, shop)
    await operated.in_a_thread(stands, shop)
    await refused(shop, "a", "b")
    page = await operated.browser.open()
    assert "Aggregates that wait 1 since 2" in page.text
    assert "Outbox messages that are dead 1 of 1 that were refused" in page.text
    assert "Projections that stand still 1 of 1" in page.text
    assert f"{CONSOLE}/outbox?held=1" in page.links()


async def test_a_skip_by_the_page_lets_what_waits_be_applied(shop: Place, operated: Operated) -> None:
    ledger, _ = await operated.in_a_thread(parks, shop)
    await operated.browser.log_in()
    form = (await waits(operated)).form("/order/aggregate")
    without = await operated.browser.send(form, do="skip", reason=" ")
    assert (without.status, "Give a reason" in without.text) == (400, True)
    assert (await operated.browser.send(form, do="explode", reason="x")).status == 400
    assert await operated.audit() == []
    done = await operated.browser.send(form, do="skip", reason="withdrawn")
    assert "The number 1 was skipped. 2 parked behind it follow by themselves." in done.text
    await operated.in_a_thread(sweep, ledger, lambda: not [each for each in parked(shop) if each > 1])
    assert await operated.in_a_thread(shop.effects) == ["a002", "a003"]
    again = await operated.browser.send(form, do="skip", reason="withdrawn")
    assert (again.status, "Nothing was changed" in again.text) == (409, True)
    assert await operated.audit() == [("will", "number 1 of a at ledger", "skipped", "withdrawn")]
    assert "No aggregate waits." in (await operated.browser.open("/order")).text


async def test_a_retry_by_the_page_has_the_message_tried_again(shop: Place, operated: Operated) -> None:
    ledger, broken = await operated.in_a_thread(parks, shop)
    await operated.browser.log_in()
    broken.clear()
    form = (await waits(operated)).form("/order/aggregate")
    assert "The number 1 is tried again." in (await operated.browser.send(form, do="retry", reason="mended")).text
    await operated.in_a_thread(sweep, ledger, lambda: not parked(shop))
    assert await operated.in_a_thread(shop.effects) == ["a001", "a002", "a003"]


async def test_an_aggregate_whose_id_stands_for_markup_is_shown_and_skipped(shop: Place, operated: Operated) -> None:
    name = f"{HOSTILE}\n\x00"
    await operated.in_a_thread(partial(parks, shop, aggregate=name))
    await operated.browser.log_in()
    for page in (await operated.browser.open("/order"), await waits(operated)):
        assert HOSTILE in page.text
        assert "<img" not in page.answer.text
        assert page.answer.text.count("{{7*7}}") >= 1
    form = (await waits(operated)).form("/order/aggregate")
    assert HOSTILE not in str(page.answer.url)
    assert (await operated.browser.send(form, do="skip", reason=HOSTILE)).status == 200
    (line,) = await operated.audit()
    assert line[3] == HOSTILE
    assert HOSTILE in (await operated.browser.open("/audit")).text


async def test_messages_are_retried_and_discarded_by_their_pages(shop: Place, operated: Operated) -> None:
    number = await refused(shop, HOSTILE, HOSTILE, None)
    await operated.browser.log_in()
    page = await operated.browser.open("/outbox?held=1")
    assert f"{CONSOLE}/outbox/{number}" in page.links()
    assert "ValueError: no" in page.text
    assert "<img" not in page.answer.text
    (dead,) = [each for each in page.forms if each.method == "post" and each.action.endswith("/outbox")]
    retried = await operated.browser.send(dead, reason="mended")
    assert "1 messages are tried again." in retried.text
    form = (await operated.browser.open(f"/outbox/{number}")).form(f"/outbox/{number}")
    assert f"The message {number} is tried again." in (await operated.browser.send(form, do="retry", reason="now")).text
    gone = await operated.browser.send(form, do="discard", reason="wrong")
    assert f"The message {number} was discarded." in gone.text
    assert await operated.in_a_thread(waiting, shop) == [(HOSTILE, 2)]
    again = await operated.browser.send(form, do="discard", reason="wrong")
    assert (again.status, "Nothing was changed" in again.text) == (404, True)
    assert [each[2] for each in await operated.audit()] == ["discarded", "retried", "retried"]
    for path in ("/outbox/0", "/outbox/x", "/outbox/99999999999999999999", f"/outbox/{number}"):
        assert (await operated.browser.open(path)).status == 404
    assert (await operated.browser.open("/outbox?after=x")).status == 400


async def test_messages_are_looked_through_page_by_page(shop: Place, operated: Operated) -> None:
    await operated.in_a_thread(added, shop, *[None] * 53)
    await operated.browser.log_in(READER)
    first = await operated.browser.open("/outbox")
    (further,) = [link for link in first.links() if "after=" in link]
    second = await operated.browser.open(further)
    shown = [{link for link in page.links() if link.startswith(f"{CONSOLE}/outbox/")} for page in (first, second)]
    assert ([len(each) for each in shown], shown[0] & shown[1]) == ([50, 3], set())
    assert not [link for link in second.links() if "after=" in link]


async def test_the_event_at_which_a_projection_stands_is_skipped_by_its_page(shop: Place, operated: Operated) -> None:
    await operated.in_a_thread(stands, shop)
    await operated.browser.log_in()
    page = await operated.browser.open("/projections")
    assert "position 2 since" in page.text
    form = (await operated.browser.open("/projections/balance.v1")).form("/projections/balance.v1")
    other = Form(form.action, form.method, form.fields | {"position": "1"})
    wrong = await operated.browser.send(other, reason="no")
    assert (wrong.status, "only the event at which it stands" in wrong.text) == (409, True)
    done = await operated.browser.send(form, reason="a mistake")
    assert "The event at position 2 was skipped." in done.text
    assert "stands at no event" in (await operated.browser.open("/projections/balance.v1")).text
    assert (await operated.browser.open("/projections/no%00ne")).status == 404


@pytest.mark.parametrize("shop", ["asyncpg", "pysqlite"], indirect=True)
async def test_find_takes_an_aggregate_a_message_and_a_key(shop: Place, operated: Operated) -> None:
    await operated.in_a_thread(partial(parks, shop, aggregate="b"))
    number = await refused(shop, "a")
    await operated.in_a_thread(shop.deliver, Inbox("billing"), "applied-1")
    await operated.browser.log_in(READER)
    box = (await operated.browser.open("/find")).form("/find")
    found = await operated.browser.send(box, what="b")
    assert any("/order/aggregate?" in link for link in found.links())
    for what in ("a", str(number)):
        assert f"{CONSOLE}/outbox/{number}" in (await operated.browser.send(box, what=what)).links()
    assert "billing, received" in (await operated.browser.send(box, what="applied-1")).text
    for nothing in ("nobody", "a\x00b", "7" * 30, HOSTILE):
        page = await operated.browser.send(box, what=nothing)
        assert (page.status, "Nothing was found." in page.text) == (200, True), nothing
    identifier = await operated.browser.keep_unknown("k-1")
    assert f"Record {identifier}" in (await operated.browser.send(box, what="k-1")).text


@pytest.mark.parametrize("shop", ["pysqlite"], indirect=True)
async def test_who_reads_and_who_forges_changes_nothing(shop: Place, operated: Operated) -> None:
    await operated.in_a_thread(parks, shop)
    await operated.in_a_thread(stands, shop)
    number = await refused(shop, "a")
    await operated.browser.log_in(WRITER)
    pages = ["/outbox", f"/outbox/{number}", "/projections/balance.v1"]
    forms = [(await waits(operated)).form("/order/aggregate")]
    for path in pages:
        (form,) = [
            each
            for each in (await operated.browser.open(path)).forms
            if each.method == "post" and each.action.endswith(path)
        ]
        forms.append(form)
    given: dict[str, Any] = {"do": "discard", "reason": "why"}
    for form in forms:
        assert (await operated.browser.send(form, **given, headers={"sec-fetch-site": "cross-site"})).status == 403
        forged = Form(form.action, form.method, form.fields | {"form": "forged"})
        assert (await operated.browser.send(forged, **given)).status == 403
    operated.client.cookies.clear()
    await operated.browser.log_in(READER)
    reading = await operated.browser.open("/find")
    for form in forms:
        own = Form(form.action, form.method, form.fields | {"form": reading.form("/find").fields["form"]})
        answer = await operated.browser.send(own, **given | {"do": "retry"})
        assert (answer.status, "is for reading" in answer.text) == (403, True)
    for page in (await waits(operated), *[await operated.browser.open(path) for path in pages]):
        assert [form for form in page.forms if form.method == "post"] == [page.form("/log-out")]
        assert "Your token is for reading" in page.text
    assert await operated.audit() == []


async def test_without_a_database_there_is_no_such_page() -> None:
    async with operating("") as there:
        page = await there.browser.log_in()
        assert menu(page) == []
        assert "Aggregates that wait" not in page.text
        for path in MENU:
            assert (await there.browser.open(path)).status == 404
        assert "an outbox message" not in (await there.browser.open("/find")).text

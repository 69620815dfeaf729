"""All unknown outcomes of a choice on the console's pages: counted, confirmed, done step by step, with a reason.

Rules of docs/contract.md: R11.52, R11.54, R11.56.
"""

import re
from typing import Any
from urllib.parse import quote

import pytest

from oncegate.app.operators.console.records import all_unknown as page_of_all
from oncegate.app.operators.records import unknown_changes
from oncegate.middleware.outcome.responses import now_ms
from tests.app.operators.console.browsing import CONSOLE, READER, Browsed, Browser, Form
from tests.app.operators.console.test_pages import HOSTILE, as_tags, audited, paying, resolving

ALL = "/unknown/all"


async def lost(browser: Browser, key: str, route: str = "/payments", ago: float = 60.0) -> str:
    """A record of unknown outcome, since a second after it began so long ago; its id."""
    return await browser.keep_unknown(key, route=route, begun_at_ms=now_ms() - round(ago * 1000), took_ms=1000)


async def state(browser: Browser, identifier: str) -> str:
    page = await browser.open(f"/records/{identifier}")
    return "absent" if page.status == 404 else page.text.partition("State: ")[2].split(" ")[0]


async def counted(browser: Browser, query: str = "") -> Browsed:
    """The page on which the count has ended, by what each one leads on to by itself."""
    page = await browser.open(ALL + query)
    while refresh := page.answer.headers.get("refresh"):
        after, _, address = refresh.partition("; url=")
        assert after == "0"
        page = await browser.open(address)
    return page


async def test_all_that_match_are_counted_and_resolved_as_executed(caplog: pytest.LogCaptureFixture) -> None:
    async with paying() as browser:
        ids = [await lost(browser, f"k-{number}") for number in range(3)]
        other = await lost(browser, "other", "/refunds")
        listed = await browser.open("/unknown?route=/payments")
        (link,) = [each for each in listed.links() if ALL in each]
        page = await browser.open(link)
        assert "3 records of unknown outcome match" in page.text
        assert "Route /payments Caller any Began at any time Unknown before 20" in page.text
        form = resolving(page, "succeeded")
        assert "Resolve 3 as executed" in page.text
        page = await browser.send(form, status="201", body='{"id": 7}', reason="all in the books")
        assert page.answer.url.path == f"{CONSOLE}/unknown"
        assert "3 records were resolved as executed." in page.text
        assert {await state(browser, each) for each in ids} == {"succeeded"}
        assert await state(browser, other) == "unknown"
        shown = await browser.open(f"/records/{ids[0]}")
        assert "resolved by will: all in the books" in shown.text
        audit = await browser.open("/audit")
        assert "will 3 records of unknown outcome (until 20" in audit.text
        assert "route /payments) resolved to succeeded all in the books" in audit.text
        assert f"record {ids[0]}: resolved to succeeded by will: all in the books" in audited(caplog)


@pytest.mark.parametrize(("outcome", "left"), [("failed", "failed"), ("release", "absent")])
async def test_none_was_executed(outcome: str, left: str) -> None:
    async with paying() as browser:
        ids = [await lost(browser, f"k-{number}") for number in range(3)]
        page = await browser.send(resolving(await counted(browser), outcome), reason="not booked")
        assert f"3 records were {page_of_all.DONE[outcome]}." in page.text
        assert {await state(browser, each) for each in ids} == {left}


async def test_ages_count_from_the_time_of_the_count_and_stand_in_the_address() -> None:
    async with paying() as browser:
        new, old = await lost(browser, "new"), await lost(browser, "old", ago=3600)
        assert "1 records of unknown" in (await counted(browser, "?since=5m")).text
        page = await counted(browser, "?older=30m")
        assert "Began before 30m ago" in page.text
        await browser.send(resolving(page, "release"), reason="not booked")
        assert (await state(browser, new), await state(browser, old)) == ("unknown", "absent")
        digest = new.partition(":")[2]
        assert "1 records of unknown" in (await counted(browser, f"?caller={digest}")).text
        for wrong in (
            "since=2h",
            "older=x",
            "caller=alice",
            f"route={'x' * 1001}",
            "until=x",
            "found=-1",
            "cursor=%00",
        ):
            for path in (ALL, "/unknown"):
                if path == ALL or wrong.split("=")[0] not in ("until", "found"):
                    assert (await browser.open(f"{path}?{wrong}")).status == 400, wrong


async def test_what_has_become_unknown_since_the_count_stays() -> None:
    async with paying() as browser:
        seen = await lost(browser, "k-1")
        form = resolving(await counted(browser), "release")
        late = await lost(browser, "k-2", ago=0.9)  # unknown some 100 ms after this moment
        page = await browser.send(form, reason="not booked")
        assert "1 records were released. 1 stay: they have become unknown since" in page.text
        assert (await state(browser, seen), await state(browser, late)) == ("absent", "unknown")
        ahead = await browser.open(f"{ALL}?until={10**15 - 1}")
        assert "Unknown before 20" in ahead.text, "nobody has seen what comes"


async def test_many_are_counted_and_changed_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_of_all, "COUNTED", 500)
    monkeypatch.setattr(unknown_changes, "MOST_CHANGED", 400)
    async with paying() as browser:
        ids = [await lost(browser, f"k-{number}") for number in range(1200)]
        page = await browser.open(ALL)
        so_far = re.search(r"([0-9]+) so far\. The count goes on by itself\.", page.text)
        assert so_far is not None
        assert 500 <= int(so_far[1]) < 1000
        assert not [each for each in page.forms if "as" in each.fields], "nothing can be changed before it has ended"
        assert page.answer.headers["refresh"].partition("url=")[2] in page.links(), "a browser may not go on by itself"
        page = await counted(browser)
        assert "1,200 records of unknown outcome match" in page.text
        await browser.send(resolving(await browser.open(f"/records/{ids[7]}"), "failed"), reason="was quicker")
        page = await browser.send(resolving(page, "release"), reason="not booked")
        steps = 1
        while page.status == 200 and "data-goes-on" in str(page.tags):
            released = re.search(r"([0-9,]+) of 1,200 are released", page.text)
            assert released is not None
            assert 400 * steps <= int(released[1].replace(",", "")) < 450 * steps
            page = await browser.send(page.form(ALL))
            steps += 1
        assert steps in (3, 4)
        assert "1199 records were released." in page.text
        assert (await browser.open("/unknown")).text.count("vm/1") == 0
        assert await state(browser, ids[7]) == "failed"
        lines = (await browser.open("/audit")).text
        assert lines.count("records of unknown outcome (until") == steps


async def test_a_job_that_is_stopped_has_done_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unknown_changes, "MOST_CHANGED", 50)
    async with paying() as browser:
        for number in range(120):
            await lost(browser, f"k-{number}")
        page = await browser.send(resolving(await counted(browser), "release"), reason="not booked")
        released = re.search(r"([0-9]+) of 120 are released\.", page.text)
        assert released is not None
        assert 50 <= int(released[1]) < 120
        assert f"{CONSOLE}/unknown" in page.links()
        assert f"{120 - int(released[1])} records of unknown outcome match" in (await counted(browser)).text


@pytest.mark.parametrize("reason", ["", "   ", "x" * 121, "a\nb", "\u202eabc"])
async def test_without_a_reason_nothing_is_changed(reason: str) -> None:
    async with paying() as browser:
        identifier = await lost(browser, "k-1")
        page = await browser.send(resolving(await counted(browser), "release"), reason=reason)
        assert (page.status, "Nothing was changed" in page.text) == (400, True)
        assert await state(browser, identifier) == "unknown"


async def test_what_is_no_finding_changes_nothing() -> None:
    async with paying() as browser:
        identifier = await lost(browser, "k-1")
        form = resolving(await counted(browser), "succeeded")
        wrong: list[dict[str, Any]] = [
            {"as": "executed"},
            {"as": ""},
            {"status": ""},
            {"status": "99"},
            {"status": "x"},
            {"until": ""},
            {"until": "soon"},
            {"since": "2h"},
        ]
        for given in wrong:
            page = await browser.send(form, **{"reason": "because", "status": "201"} | given)
            assert page.status == 400, given
        assert await state(browser, identifier) == "unknown"


async def test_a_token_that_reads_counts_and_is_refused_where_it_posts(caplog: pytest.LogCaptureFixture) -> None:
    async with paying(READER) as browser:
        identifier = await lost(browser, "k-1")
        assert not [each for each in (await browser.open("/unknown")).links() if ALL in each]
        page = await counted(browser)
        assert "1 records of unknown outcome match" in page.text
        assert "Your token is for reading" in page.text
        assert [each for each in page.forms if "as" in each.fields] == []
        forged = {"form": page.form("/log-out").fields["form"], "as": "release", "reason": "x", "until": str(now_ms())}
        answer = await browser.send(Form(f"{CONSOLE}{ALL}", "post", forged))
        assert (answer.status, "for reading" in answer.text) == (403, True)
        assert await state(browser, identifier) == "unknown"
        assert audited(caplog) == ["console: opened by rita"]


async def test_a_form_without_its_token_changes_nothing() -> None:
    async with paying() as browser:
        identifier = await lost(browser, "k-1")
        form = resolving(await counted(browser), "release")
        del form.fields["form"]
        assert (await browser.send(form, reason="because")).status == 403
        assert await state(browser, identifier) == "unknown"


@pytest.mark.parametrize("hostile", HOSTILE)
async def test_a_choice_and_what_is_carried_on_are_text(hostile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unknown_changes, "MOST_CHANGED", 50)
    async with paying() as browser:
        progress = []
        for route in (hostile, "x"):
            for number in range(60):
                await lost(browser, f"{route}-{number}", route)
            page = await browser.open(f"{ALL}?route={quote(route)}")
            assert f"Route {' '.join(route.split())} Caller any" in page.text
            form = resolving(page, "succeeded")
            done = await browser.send(form, reason=route, status="200", body=route, type="text/plain")
            carried = done.form(ALL).fields
            assert (carried["reason"], carried["body"], carried["route"]) == (route, route, route)
            progress.append((as_tags(page), as_tags(done)))
        assert progress[0] == progress[1]

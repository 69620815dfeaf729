"""The console's commands: how far consumers are, and dead letters retried or discarded with a reason, by who may.

Rules of docs/contract.md: R11.43, R11.66.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from oncegate.app.operators.console import commands
from oncegate.app.settings.admin_tokens import AdminToken
from oncegate.cache.redis.scripts import LETTER_HEADS
from testing.servers import RedisServer
from tests.app.operators.console.browsing import CONSOLE, READER, WRITER, Browsed, Browser, Form
from tests.app.operators.test_dead_letters import Letters
from tests.app.operators.test_streams import command, died
from tests.app.submitted import Submitted, serving

TOKENS = [AdminToken.of("rita", READER, writes=False).setting(), AdminToken.of("will", WRITER).setting()]
HOSTILE = "<img src=x onerror=alert()>\"'&"


class Operated:
    """A browser at the console of a gateway with streams, and their dead letters."""

    def __init__(self, there: Submitted, redis: RedisServer) -> None:
        self.there = there
        self.letters = Letters(there, redis)
        self.browser = Browser(there.client)

    async def error(self) -> Browsed:
        """The page of the first error that is listed."""
        page = await self.browser.open("/commands")
        return await self.browser.open(next(link for link in page.links() if "/commands/error?" in link))

    async def left(self) -> int:
        return len((await self.letters.get(stream="commands"))["dead_letters"])

    async def audit(self) -> list[tuple[str, str, str]]:
        answer = await self.there.client.get("/_oncegate/audit/", headers={"authorization": f"Bearer {READER}"})
        return [(line["operator"], line["done"], line["reason"]) for line in answer.json()["lines"]]


@pytest.fixture
async def operated(redis_server: RedisServer) -> AsyncIterator[Operated]:
    async with serving(redis_server, admin_tokens=TOKENS) as there:
        yield Operated(there, redis_server)


async def test_streams_and_errors_are_shown_and_lead_to_each_command(operated: Operated) -> None:
    browser, letters = operated.browser, operated.letters
    await browser.log_in(READER)
    page = await browser.open("/commands")
    assert page.text.count("No dead letters.") == 2
    assert "Nobody has begun to read it as billing" in page.text
    letters.has_a_reader()
    await operated.there.submit()
    for number in range(3):
        letters.add(command(number), others=died(f"no account {number}"))
    letters.add(command(9), others=died(HOSTILE, kind=HOSTILE))
    page = await browser.open("/commands")
    assert "NotRetryable: no account #" in page.text
    assert HOSTILE in page.text
    assert "<img" not in page.answer.text
    assert "4 dead letters were looked at, which are all" in " ".join(page.text.split()).replace(" ,", ",")
    error = await operated.error()
    assert "no account 2" in error.text
    one = await browser.open(next(link for link in error.links() if "/commands/letter?" in link))
    assert "no account 2" in one.text
    assert f"{CONSOLE}/records/{command(2)}" in one.links()
    for hidden in ("secret-key", '"secret"', "&#34;secret", "token=secret"):  # its key, its payload, its target's query
        assert hidden not in one.answer.text
    for page in (error, one):
        assert "Your token is for reading" in page.text
    assert [form.action for form in error.forms] == [f"{CONSOLE}/log-out"]
    assert [form.action for form in one.forms] == [f"{CONSOLE}/log-out", f"{CONSOLE}/commands/payload"]


async def test_errors_of_the_newest_letters_are_shown_and_it_is_said_that_there_are_others(
    operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "SCANNED", 3)
    for number, error in enumerate(["too old", *["no account"] * 3]):
        operated.letters.add(command(number), others=died(error))
    await operated.browser.log_in(READER)
    page = await operated.browser.open("/commands")
    words = " ".join(page.text.split())
    assert "NotRetryable: no account" in words
    assert "too old" not in words
    assert "3 dead letters were looked at, the newest: there are others" in words
    assert "oncegate commands errors --stream commands looks at more" in words


async def test_pages_read_few_letters_at_a_time_by_a_connection_that_stays(
    operated: Operated, redis_server: RedisServer
) -> None:
    """Redis does nothing else meanwhile, neither while it reads letters nor while a connection loads its scripts."""
    browser, letters = operated.browser, operated.letters
    letters.has_a_reader()
    for number in range(45):
        letters.add(command(number), others=died(f"no account {number}"))
    await browser.log_in(READER)
    await operated.error()
    with redis_server.monitored() as seen:
        for path in ("", "/commands", "/find"):
            await browser.open(path)
        await operated.error()
    reads = [line.split()[-1] for line in seen if LETTER_HEADS.digest.decode() in line]
    assert reads == ["10"] * (3 * 5 + 2), "three pages of five reads each, and two look into the other stream as well"
    assert not [line for line in seen if line.startswith(("HELLO", "SCRIPT"))]


async def test_a_payload_is_shown_on_a_click_alone_and_each_click_is_audited(
    operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, letters = operated.browser, operated.letters
    await browser.log_in(READER)
    identifier = letters.add(command(1), others={b"key": HOSTILE.encode(), b"body": f'{{"to": "{HOSTILE}"}}'.encode()})
    page = await browser.open(f"/commands/letter?stream=commands&id={identifier}")
    assert HOSTILE not in page.text
    assert (await browser.open("/commands/payload")).status == 405
    for number in (1, 2):
        shown = await browser.send(page.form("/commands/payload"))
        assert (shown.text.count(HOSTILE), "<img" in shown.answer.text) == (2, False)
        assert "/reports?token=secret" in shown.text
        assert await operated.audit() == [("rita", "its key and payload shown", "")] * number
    form = page.form("/commands/payload")
    forged = Form(form.action, form.method, form.fields | {"form": "forged"})
    assert (await browser.send(forged)).status == 403
    assert len(await operated.audit()) == 2
    monkeypatch.setattr(commands, "MOST_SHOWN", 4)
    cut = await browser.send(form)
    assert (cut.text.count(HOSTILE), "cut off" in cut.text) == (1, True)
    letters.has_a_reader()
    await letters.post(f"{identifier}/discard")
    gone = await browser.send(form)
    assert (gone.status, len(await operated.audit())) == (404, 4)


@pytest.mark.parametrize("do", ["retry", "discard"])
async def test_all_of_one_error_are_changed_with_a_reason(operated: Operated, do: str) -> None:
    browser, letters = operated.browser, operated.letters
    await browser.log_in(WRITER)
    letters.has_a_reader()
    for number in range(3):
        letters.add(command(number), others=died(f"no account {number}"))
    letters.add(command(9), others=died("never", reason="attempts"))
    form = (await operated.error()).form("/commands/error")
    refused = await browser.send(form, do=do, reason="  ")
    assert (refused.status, "Give a reason" in refused.text) == (400, True)
    assert await operated.left() == 4
    done = await browser.send(form, do=do, reason="it was mended")
    assert f"3 dead letters were {'retried' if do == 'retry' else 'discarded'}." in done.text
    assert (await operated.left(), len(letters.entries())) == (1, 3 if do == "retry" else 0)
    assert await operated.audit() == [("will", "retried" if do == "retry" else "discarded", "it was mended")]


@pytest.mark.parametrize("do", ["retry", "discard"])
async def test_one_command_is_changed_once(operated: Operated, do: str) -> None:
    browser, letters = operated.browser, operated.letters
    await browser.log_in(WRITER)
    letters.has_a_reader()
    kept, changed = letters.add(command(1)), letters.add(command(2))
    form = (await browser.open(f"/commands/letter?stream=commands&id={changed}")).form("/commands/letter")
    done = await browser.send(form, do=do, reason=HOSTILE)
    assert f"The dead letter {changed} was" in done.text
    again = await browser.send(form, do=do, reason="again")
    assert (again.status, "Nothing was changed" in again.text) == (404, True)
    assert [each["id"] for each in (await letters.get(stream="commands"))["dead_letters"]] == [kept]
    assert [reason for _, _, reason in await operated.audit()] == [HOSTILE]


async def test_who_reads_and_who_forges_changes_nothing(operated: Operated) -> None:
    browser, letters = operated.browser, operated.letters
    letters.has_a_reader()
    identifier = letters.add(command(1))
    await browser.log_in(WRITER)
    form = (await browser.open(f"/commands/letter?stream=commands&id={identifier}")).form("/commands/letter")
    given: dict[str, Any] = {"do": "discard", "reason": "why"}
    assert (await browser.send(form, **given, headers={"sec-fetch-site": "cross-site"})).status == 403
    forged = Form(form.action, form.method, form.fields | {"form": "forged"})
    assert (await browser.send(forged, **given)).status == 403
    assert (await browser.send(form, reason="why", do="explode")).status == 400
    assert (await browser.send(form, **given, stream="nobody's")).status == 404
    assert (await browser.send(form, **given, id="absurd")).status == 404
    browser.client.cookies.clear()
    reading = await browser.log_in(READER)
    form.fields["form"] = reading.forms[0].fields["form"]
    refused = await browser.send(form, **given)
    assert (refused.status, "is for reading" in refused.text) == (403, True)
    assert await operated.left() == 1
    assert await operated.audit() == []


async def test_what_nobody_would_read_is_said_and_stays(operated: Operated) -> None:
    browser, letters = operated.browser, operated.letters
    await browser.log_in(WRITER)
    letters.has_a_reader()
    identifier = letters.add(command(1), consumer="gone")
    form = (await browser.open(f"/commands/letter?stream=commands&id={identifier}")).form("/commands/letter")
    one = await browser.send(form, do="retry", reason="why")
    assert (one.status, "Start its worker first" in one.text) == (409, True)
    form = (await operated.error()).form("/commands/error")
    several = await browser.send(form, do="retry", reason="why")
    assert "1 stay: the consumer reads the stream no more" in several.text
    assert (await operated.left(), await operated.audit()) == (1, [])
    for path in ("/commands/error?stream=commands&group=absurd", "/commands/letter?stream=commands&id=1-1"):
        assert (await browser.open(path)).status == 404


async def test_a_submission_s_record_leads_to_its_command(operated: Operated) -> None:
    browser, letters = operated.browser, operated.letters
    await browser.log_in(READER)
    accepted = (await operated.there.submit()).json()
    identifier = accepted["command"]
    page = await browser.open(f"/records/{identifier}")
    assert f"{accepted['position']} : in the stream" in page.text
    assert "not begun" in page.text
    held = await operated.there.cache.get(f"{operated.there.namespace}:{identifier}")
    assert held is not None
    assert held.record.fingerprint.hex() in page.text
    letter = letters.add(identifier, others=died(HOSTILE))
    page = await browser.open(f"/records/{identifier}")
    assert f"{CONSOLE}/commands/letter?stream=commands&id={letter}" in page.links()
    assert HOSTILE in page.text
    assert "<img" not in page.answer.text

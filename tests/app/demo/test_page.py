"""The demo's page in a real headless Chromium: what each button does, with the service's own books as the judge.

Rules of docs/contract.md: R10.25.
"""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncegate.app.demo.actions import ACTIONS
from testing.chromium import Chromium
from testing.command_line import PATIENCE, forked
from testing.fetching import fetched
from testing.waiting import wait_until
from tests.app.demo.conftest import Demo, Demos

NAMES = [action.name for action in ACTIONS]
LABELS = {action.name: action.label for action in ACTIONS}
OUTCOMES = {
    "pay": ("201 executed", 1),
    "pay-again": ("201 replayed", 1),
    "pay-twice": ("201 executed and 409 in-flight", 1),
    "pay-another-amount": ("422 key-reused", 1),
    "gateway-dies": ("409 outcome-unknown", 1),
    "payments-die-before-booking": ("409 outcome-unknown", 0),
    "payments-die-after-booking": ("409 outcome-unknown", 1),
    "redis-away": ("201 executed", 1),
}
"""How each ends, after a first payment: what its client gets in the end, and how often its key is booked."""


OVERLAPS = """
Array.from(document.querySelectorAll('li, article, tr')).filter(each => each.nextElementSibling
    && each.getBoundingClientRect().bottom > each.nextElementSibling.getBoundingClientRect().top + 1).map(each => each.innerText)
"""
"""What is covered by the one behind it."""


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Chromium]:
    with Chromium(chromium) as browser:
        yield browser


@pytest.fixture(scope="module")
def on_sqlite(demos: Demos, without_redis: str) -> Iterator[Demo]:
    with demos(without_redis) as demo:
        yield demo
        demo.stop()


@pytest.fixture(scope="module")
def on_redis(demos: Demos, with_redis: str) -> Iterator[Demo]:
    with demos(with_redis) as demo:
        yield demo
        demo.stop()


@pytest.fixture
def page(browser: Chromium) -> Iterator[Chromium]:
    """At a desk, with scripts. Nothing may have gone wrong in it by the end."""
    browser.look()
    yield browser
    assert browser.complaints == []


def act(page: Chromium, name: str) -> str:
    """Press the button; what its outcome is in the end."""
    before = performed(page)
    page.click(f'form[action="/actions/{name}"] button')
    wait_until(lambda: performed(page) > before, f"{name} ends")
    label, _, outcome = page.text("#outcome").partition(". ")[2].partition(": ")
    assert label == LABELS[name]
    return outcome.removesuffix(".")


def performed(page: Chromium) -> int:
    """The number of the last action that has ended; 0 while one runs, or before the first."""
    found = re.match(r"(\d+)\. ", page.text("#outcome"))
    return int(found[1]) if found is not None else 0


def counts(page: Chromium) -> list[int]:
    """Sent, arrived, executed."""
    return [int(page.text(f"#count-{name}")) for name in ("sent", "arrived", "executed")]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "redis-away"])
def test_each_button_ends_as_is_promised_on_sqlite(page: Chromium, on_sqlite: Demo, name: str) -> None:
    check(page, on_sqlite, name)


@pytest.mark.parametrize("name", NAMES)
def test_each_button_ends_as_is_promised_on_redis(page: Chromium, on_redis: Demo, name: str) -> None:
    check(page, on_redis, name)


def check(page: Chromium, demo: Demo, name: str) -> None:
    page.open(demo.page)
    assert act(page, "pay") == "201 executed"
    outcome, booked = OUTCOMES[name]
    if name != "pay":
        assert act(page, name) == outcome
    key = page.text("#key")
    wait_until(lambda: demo.bookings(key) >= booked, "it is booked")
    page.wait_for(f"document.querySelector('#booked').innerText === 'Booked under this key: {booked}.'")
    books = demo.books()
    page.wait_for(f"document.querySelector('#count-executed').innerText === '{books['executed']}'")
    assert demo.bookings(key) == booked
    sent, arrived, executed = counts(page)
    assert (arrived, executed) == (books["arrived"], books["executed"])
    assert sent >= arrived >= executed
    again = act(page, "pay-again")
    assert again == ("409 outcome-unknown" if "unknown" in outcome else "201 replayed")
    assert demo.bookings(key) == booked, "a retry after it is never booked"
    story = page.text("#timeline")
    assert ("unknown: nobody knows" if "unknown" in outcome else "succeeded: the response 201") in story


def test_a_process_is_killed_and_another_one_comes(page: Chromium, on_redis: Demo) -> None:
    page.open(on_redis.page)
    for name, process in (("gateway-dies", "gateway"), ("payments-die-before-booking", "payments service")):
        act(page, name)
        story = page.text("#timeline")
        killed = re.search(rf"the {process} is killed \(SIGKILL, process (\d+)\)", story)
        came = re.search(rf"the {process} is up \(process (\d+)\)", story)
        assert killed is not None, story
        assert came is not None, story
        assert killed[1] != came[1]
        assert story.index(killed[0]) < story.index(came[0])
        assert not Path(f"/proc/{killed[1]}").exists()


def test_without_redis_its_button_says_what_is_missing(page: Chromium, on_sqlite: Demo) -> None:
    page.open(on_sqlite.page)
    assert page.evaluate("document.querySelector('form[action=\"/actions/redis-away\"] button').disabled")
    assert "Needs a redis-server, 7.0 or newer" in page.text("#promise-redis-away")


@pytest.mark.parametrize("name", NAMES)
def test_the_curl_beside_each_button_runs_as_it_stands(page: Chromium, on_redis: Demo, name: str) -> None:
    page.open(on_redis.page)
    act(page, "pay")
    lines = page.text(f"#curl-{name}")
    key = re.search(r"Idempotency-Key: ([\w-]+)", lines)
    assert key is not None
    before = on_redis.books()["executed"]
    printed = shell(lines)
    outcome, booked = OUTCOMES[name]
    if name not in ("gateway-dies", "payments-die-before-booking", "payments-die-after-booking"):
        for status in re.findall(r"\b\d{3}\b", outcome):
            assert f"HTTP/1.1 {status} " in printed, printed
    wait_until(lambda: on_redis.bookings(key[1]) >= booked, "it is booked", not_yet=(Exception,))
    page.wait_for(f"document.querySelector('#key').innerText === {key[1]!r}", "the page follows what curl has sent")
    pay_again = page.text("#curl-pay-again")
    last = wait_until(lambda: ended(shell(pay_again)), "a retry by curl gets its last answer")
    assert last in ("409", "201")
    assert (last == "409") == ("unknown" in outcome)
    assert on_redis.bookings(key[1]) == booked
    assert on_redis.books()["executed"] == before + booked * (name not in ("pay-again", "pay-another-amount"))


def shell(lines: str) -> str:
    """What the lines print, in a shell."""
    environment = {"PATH": f"{Path(fetched('curl')).parent}:/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", lines], capture_output=True, text=True, env=environment, timeout=PATIENCE)
    return done.stdout


def ended(printed: str) -> str:
    """The status, where another retry would get the same."""
    status = re.search(r"^HTTP/1.1 (\d+)", printed)
    return status[1] if status is not None and '"retryable":true' not in printed else ""


def test_without_enforcement_the_page_shows_a_second_booking(page: Chromium) -> None:
    """Nothing on it is written down before: it shows what the service has."""
    off = "stack._CONFIGURATION += '''\\n[[routes]]\\npath = \"/payments*\"\\nmethods = []\\n'''"
    with forked("demo", "--port", "0", before=f"from oncegate.app.demo import stack; {off}") as process:
        demo = Demo(process)
        page.open(demo.page)
        act(page, "pay")
        assert act(page, "pay-again") == "201 executed"
        page.wait_for("document.querySelector('#booked').innerText === 'Booked under this key: 2.'")
        page.wait_for("document.querySelector('#count-executed').innerText === '2'")
        assert demo.bookings(page.text("#key")) == 2
        page.open("about:blank")  # else it would go on looking for the demo, and complain in another test
        demo.stop()


def test_what_others_send_is_text_on_the_page(page: Chromium, on_sqlite: Demo) -> None:
    page.open(on_sqlite.page)
    key = "<img/src=x/onerror=window.ran=1></pre><script>window.ran=1</script>"
    body = '{"amount": 100, "a": "</td><script>window.ran=1</script>"}'
    shell(shlex.join(["curl", "-s", f"{on_sqlite.gateway}/payments", "-H", f"Idempotency-Key: {key}", "-d", body]))
    page.wait_for("document.querySelector('#key').innerText.startsWith('<img/src=x')", "the key is shown as it is")
    assert "</td><script>" in page.text("#books")
    assert page.evaluate("window.ran === undefined && document.querySelectorAll('main img, main script').length === 0")
    curl = page.text("#curl-pay-again")
    assert act(page, "pay-again") == "201 replayed"
    assert ended(shell(curl)) == "201"
    page.open(on_sqlite.page)
    assert page.evaluate("window.ran === undefined && document.querySelectorAll('main img, main script').length === 0")


def test_it_works_without_a_script(browser: Chromium, on_sqlite: Demo) -> None:
    browser.look(script=False)
    browser.open(on_sqlite.page)
    executed = on_sqlite.books()["executed"]
    browser.evaluate("window.former = true")
    browser.click('form[action="/actions/pay"] button')
    browser.wait_for("!window.former && document.readyState === 'complete'")
    assert browser.text("#outcome").endswith(". Pay: 201 executed.")
    assert browser.text("#count-executed") == str(executed + 1)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1440])
def test_it_fits_and_can_be_read(browser: Chromium, on_sqlite: Demo, width: int, dark: bool) -> None:
    browser.look(width, 800, dark=dark)
    browser.open(on_sqlite.page)
    act(browser, "pay")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(SMALLEST_CONTRAST) >= 4.5
    browser.wait_for("document.querySelectorAll('#timeline li').length > 2")
    assert browser.evaluate(OVERLAPS) == []
    assert browser.complaints == []


def test_the_keyboard_alone_does_it_and_stays_where_it_is(browser: Chromium, on_sqlite: Demo) -> None:
    browser.look()
    browser.open(on_sqlite.page)
    focused = "document.activeElement.innerText"
    reached = []
    for _ in range(len(NAMES) - 1):
        browser.press("Tab")
        reached.append(browser.evaluate(focused))
    assert reached == [LABELS[name] for name in NAMES if name != "redis-away"]
    browser.open(on_sqlite.page)
    before = performed(browser)
    browser.press("Tab")
    browser.press("Enter")
    wait_until(lambda: performed(browser) > before, "it is done")
    assert browser.text("#outcome").endswith(". Pay: 201 executed.")
    assert browser.evaluate(focused) == "Pay", "what changes around it doesn't take the focus"


def test_a_screen_reader_has_names_for_all_of_it(browser: Chromium, on_sqlite: Demo) -> None:
    browser.look()
    browser.open(on_sqlite.page)
    browser.command("Accessibility.enable")
    nodes = browser.command("Accessibility.getFullAXTree")["nodes"]
    named = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]}
    assert {("button", label) for label in LABELS.values()} <= named
    regions = {"The client", "The key's timeline", "The service's own books"}
    assert {("region", name) for name in regions} <= named
    assert not {role for role, name in named if role in ("button", "region", "heading", "link") and not name}
    assert "status" in {role for role, _ in named}, "the outcome is read out when it comes"


SMALLEST_CONTRAST = """(() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map((each) => each / 255)
      .map((each) => each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (each) => {
    for (; each; each = each.parentElement) {
      const color = getComputedStyle(each).backgroundColor;
      if (!/, 0\\)$/.test(color)) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const written = [...document.querySelectorAll("body *")].filter((each) => each.innerText && !each.disabled);
  return Math.min(...written.map((each) => {
    const [dark, bright] = [light(getComputedStyle(each).color), light(behind(each))].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  }));
})()"""

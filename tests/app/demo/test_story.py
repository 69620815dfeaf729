"""A key's story of what was read about it, and markup of which nothing but its own elements is markup."""

import shlex
from typing import Any

import pytest

from oncegate.app.demo.actions import BY_NAME, PaymentRequest, curl_lines, request_of
from oncegate.app.demo.books import Books
from oncegate.app.demo.page.html import element, join
from oncegate.app.demo.story import of_entries, of_record


def row(state: str, attempt: int = 1, **members: Any) -> dict[str, Any]:
    return {"state": state, "attempt": attempt, "lease_left": 5.0, "status": 201, "expires_in": 86400.0, **members}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, None, []),
        (None, row("in-flight"), ["claimed: attempt 1", "in flight, under a lease of 5 s"]),
        (row("in-flight"), row("in-flight", lease_left=4.0), []),
        (row("in-flight"), row("succeeded"), ["succeeded: the response 201 is kept for 24 h"]),
        (None, row("succeeded"), ["claimed: attempt 1", "succeeded: the response 201 is kept for 24 h"]),
        (row("in-flight"), row("unknown"), ["unknown: nobody knows"]),
        (row("in-flight"), None, ["released: the key is free"]),
        (row("unknown"), row("in-flight", 2), ["claimed: attempt 2", "in flight"]),
        (row("failed"), row("succeeded", 2), ["claimed: attempt 2", "succeeded"]),
    ],
)
def test_a_record_s_story(before: dict[str, Any] | None, after: dict[str, Any] | None, expected: list[str]) -> None:
    lines = list(of_record(before, after))
    assert len(lines) == len(expected)
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True))


def test_what_the_service_enters() -> None:
    books = Books()
    before = books.document()["entries"]
    entry = books.arrive("k", "/payments", b"{}")
    arrived = books.document()["entries"]
    assert list(of_entries(before, arrived)) == ["POST 1 arrived"]
    books.book(entry, 100)
    assert list(of_entries(arrived, books.document()["entries"])) == ["booked pay_1"]


def test_only_elements_are_markup() -> None:
    made = element("a", "<b>&", element("i", "x"), href='"><script>', data_live=True, hidden=False)
    assert made == '<a href="&quot;&gt;&lt;script&gt;" data-live>&lt;b&gt;&amp;<i>x</i></a>'
    assert join(made, "<") == f"{made}&lt;"


def test_a_shell_gets_what_others_have_sent_as_it_is() -> None:
    sent = PaymentRequest("/payments", "a'; rm -rf x; '", "$(reboot)'`")
    request = request_of(BY_NAME["pay-again"], sent, "demo-1")
    (line,) = curl_lines(BY_NAME["pay-again"], request, "http://127.0.0.1:1", "http://127.0.0.1:2")
    assert shlex.split(line)[3:] == ["-H", f"Idempotency-Key: {sent.key}", "-d", sent.body]

"""When a request is sent again, and when it is given up: the decisions, for arbitrary budgets, answers and clocks.

Rules of docs/contract.md: R12.7.
"""

import math
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.client.retry import Retries, RetryBudget, retry_after_seconds, worth_reading

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RETRYABLE = {"retryable": True}

seconds = st.floats(0, 1000, allow_nan=False)
budgets = st.builds(
    RetryBudget, attempts=st.integers(1, 20), seconds=seconds, pause=st.floats(0, 50), longest_pause=st.floats(0, 50)
)


def most() -> float:
    return 1.0


def retries(budget: RetryBudget | None = None, *, harmless: bool = True, **options: Any) -> Retries:
    return Retries(budget or RetryBudget(), harmless, 0.0, draw=most, **options)


@given(budgets, st.lists(st.tuples(st.sampled_from(["unsent", "broke", "told"]), seconds, seconds), max_size=40))
def test_no_budget_is_ever_exceeded(budget: RetryBudget, ends: list[tuple[str, float, float]]) -> None:
    """Whatever happens: no more tries than allowed, none that begins too late, no pause shorter than the server asks for."""
    one, now, tries = retries(budget), 0.0, 0
    for kind, took, after in ends:
        tries += 1
        now += took
        if kind == "unsent":
            pause = one.nothing_was_sent(now, resendable=True)
        elif kind == "broke":
            pause = one.connection_broke(now, resendable=True)
        else:
            pause = one.answered(now, 503, RETRYABLE, after, resendable=True)
        if pause is None:
            break
        assert tries < budget.attempts
        assert pause >= (after if kind == "told" else 0)
        assert now + pause <= budget.seconds + 1e-6
        now += pause
    assert one.tries == tries


@given(budgets, st.booleans(), st.booleans())
def test_what_cannot_be_sent_again_is_not(budget: RetryBudget, harmless: bool, retryable: bool) -> None:
    one = Retries(budget, harmless, 0.0)
    assert one.nothing_was_sent(0.0, resendable=False) is None
    assert one.connection_broke(0.0, resendable=False) is None
    assert one.answered(0.0, 503, {"retryable": retryable}, None, resendable=False) is None


@given(
    st.integers(200, 599), st.none() | st.booleans() | st.integers() | st.text() | st.dictionaries(st.text(), st.text())
)
def test_only_a_problem_that_says_so_is_worth_a_retry(status: int, problem: Any) -> None:
    assert retries().answered(0.0, status, problem, None, resendable=True) is None
    for value in (1, "true", None, False):
        assert retries().answered(0.0, status, {"retryable": value}, None, resendable=True) is None
    assert retries().answered(0.0, status, RETRYABLE, None, resendable=True) is not None
    assert retries(harmless=False).answered(0.0, status, RETRYABLE, None, resendable=True) is not None


def test_a_broken_connection_is_retried_only_where_that_is_harmless() -> None:
    assert retries(harmless=True).connection_broke(0.0, resendable=True) is not None
    assert retries(harmless=False).connection_broke(0.0, resendable=True) is None
    assert retries(harmless=False).nothing_was_sent(0.0, resendable=True) is not None


def test_other_statuses_count_only_with_a_key() -> None:
    for harmless, status, again in ((True, 503, True), (False, 503, False), (True, 500, False)):
        one = retries(harmless=harmless, also_statuses={503})
        assert (one.answered(0.0, status, None, None, resendable=True) is not None) is again


def test_pauses_grow_to_their_bound_and_are_drawn_from_zero_on() -> None:
    budget = RetryBudget(attempts=7, pause=0.5, longest_pause=3.0)

    def pauses(drawn: float) -> list[float | None]:
        one = Retries(budget, True, 0.0, draw=lambda: drawn)
        return [one.connection_broke(0.0, resendable=True) for _ in range(7)]

    assert pauses(1.0) == [0.5, 1.0, 2.0, 3.0, 3.0, 3.0, None]
    assert pauses(0.0) == [0.0] * 6 + [None]


def test_a_server_that_asks_for_more_than_is_left_is_not_asked_again() -> None:
    budget = RetryBudget(seconds=10)
    assert retries(budget).answered(4.0, 503, RETRYABLE, 6.5, resendable=True) is None
    assert retries(budget).answered(4.0, 503, RETRYABLE, 6.0, resendable=True) == 6.0
    assert retries(budget).answered(4.0, 503, RETRYABLE, math.inf, resendable=True) is None


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"seconds": -1}, {"pause": math.inf}, {"longest_pause": math.nan}])
def test_a_budget_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        RetryBudget(**wrong)


@given(st.integers(-10_000, 10_000), st.integers(-100_000, 100_000))
def test_a_date_counts_from_the_answers_own_date(ahead: int, skew: int) -> None:
    then, date = NOW + timedelta(seconds=ahead), NOW
    value = format_datetime(then, usegmt=True)
    wrong_clock = NOW + timedelta(seconds=skew)
    assert retry_after_seconds(value, format_datetime(date, usegmt=True), wrong_clock) == max(0, ahead)
    assert retry_after_seconds(value, None, NOW) == max(0, ahead)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("1.5", None),
        ("٣", None),
        ("Fri, 99 Foo 2026 03:04:05 GMT", None),
        ("0", 0.0),
        (" 7 ", 7.0),
        ("0000000000007", 7.0),
        ("9" * 5000, math.inf),
        ("Fri, 02 Jan 2026 03:05:05 GMT", 60.0),
        ("Friday, 02-Jan-26 03:05:05 GMT", 60.0),
        ("Fri Jan  2 03:05:05 2026", 60.0),
    ],
)
def test_retry_after_in_all_its_forms(value: str | None, expected: float | None) -> None:
    assert retry_after_seconds(value, None, NOW) == expected
    assert retry_after_seconds(value, "yesterday", NOW) == expected


@given(st.text(), st.none() | st.text())
def test_no_field_value_raises(value: str, date: str | None) -> None:
    found = retry_after_seconds(value, date, NOW)
    assert found is None or found >= 0


@pytest.mark.parametrize(
    ("status", "kind", "worth"),
    [
        (409, "application/problem+json", True),
        (503, "Application/Problem+JSON; charset=utf-8", True),
        (200, "application/problem+json", False),
        (503, "application/json", False),
        (503, "", False),
    ],
)
def test_only_problems_are_read(status: int, kind: str, worth: bool) -> None:
    assert worth_reading(status, kind) is worth

"""A worker's everyday life: what it holds, what it leaves and when it stops.

Rules of docs/contract.md: R8.19, R8.23.
"""

import signal
import time
from functools import partial
from itertools import count
from typing import Any

import pytest

from testing.servers import RedisServer
from testing.waiting import wait_until
from tests.worker.shop import LASTING, Shop, at_gate, waiting

# -- what is kept, and for whom ---------------------------------------------------------------------------------------


def test_a_result_and_an_error_are_in_the_record(shop: Shop) -> None:
    shop.submit("good")
    shop.submit("bad", {"do": "reject"})
    shop.work()
    good = shop.response("good")
    assert (good.status, good.body) == (200, b'{"booked":"good","attempt":1}')
    assert shop.response("bad").body == b'{"type":"NotRetryable","message":"no such account","dead":true}'


def test_a_command_that_failed_is_tried_again_and_succeeds(shop: Shop) -> None:
    shop.submit("k", {"do": "fail-once"})
    shop.work()
    record = shop.record("k")
    assert (record.state.value, record.attempt, shop.effects("k")) == ("succeeded", 2, 1)


def test_a_payload_that_does_not_fit_the_model_is_never_tried_again(shop: Shop) -> None:
    shop.submit("k", {"amount": "a lot"})
    shop.submit("next", {"amount": 5})
    shop.work("pay")
    (letter,) = shop.letters()
    assert (letter["key"], letter["dead.reason"], letter["dead.attempts"]) == ("k", "rejected", "1")
    assert (shop.effects("k"), shop.effects("next")) == (0, 1)


def test_what_was_not_begun_is_tried_again_and_does_not_count(shop: Shop) -> None:
    shop.submit("k", {"do": "nothing", "gate": str(shop.gate)})
    worker = shop.start(max_attempts=2, retry_base=0.01)
    worker.logs("nothing was begun", times=4)
    shop.gate.touch()
    shop.done()
    record = shop.record("k")
    assert (record.state.value, record.attempt) == ("succeeded", 1)
    assert "the shop is closed" not in worker.text()  # a handler's words may repeat what the command holds


def test_each_consumer_of_a_stream_processes_every_command(shop: Shop) -> None:
    accounting = shop.start(consumer="accounting").logs("the group accounting was made")
    shop.start().logs("the group commands was made")
    shop.submit("k")
    shop.done()
    shop.done("accounting")
    assert (shop.state("k"), shop.state("k", "accounting"), shop.effects("k")) == ("succeeded", "succeeded", 2)
    assert sum(line.endswith(f" {accounting.pid}") for line in shop.effect_lines()) == 1


def test_an_async_handler_that_cancels_itself_takes_no_runner_along(shop: Shop) -> None:
    shop.submit("k", {"do": "cancel-once"})
    shop.submit("next")
    shop.work("book_async", concurrency=1)
    record = shop.record("k")
    assert (record.state.value, record.attempt, shop.effects("next")) == ("succeeded", 2, 1)


def test_an_async_handler_that_never_ends_is_cut_and_counts_as_an_attempt(shop: Shop) -> None:
    shop.submit("k", {"do": "hang"})
    shop.submit("next")
    shop.work("book_async", concurrency=1, max_attempts=2, settings={"idempotency__attempt_timeout": 0.3})
    (letter,) = shop.letters()
    assert (letter["dead.reason"], letter["dead.attempts"], shop.effects("k")) == ("exhausted", "2", 2)
    assert shop.effects("next") == 1


def test_a_thread_that_takes_longer_than_its_time_keeps_its_command(shop: Shop) -> None:
    shop.submit("k", at_gate(shop))
    worker = shop.start(settings={"idempotency__attempt_timeout": 0.2})
    worker.logs("ran into attempt_timeout")
    shop.gate.touch()
    shop.done()
    record = shop.record("k")
    assert (record.state.value, record.attempt, shop.effects("k")) == ("succeeded", 1, 1)


@pytest.mark.parametrize("handler", ["book", "book_async"])
def test_what_is_no_exception_is_a_failed_attempt_and_takes_no_runner_along(shop: Shop, handler: str) -> None:
    for number in range(3):
        shop.submit(f"k-{number}", {"do": "panic"})
    shop.submit("next")
    worker = shop.work(handler, concurrency=1, max_attempts=2)
    assert shop.effects("next") == 1
    assert [letter["dead.error_type"] for letter in shop.letters()] == ["Panic"] * 3
    assert worker.text().count("failed: Panic") == 6


@pytest.mark.parametrize("by", ["SystemExit", "KeyboardInterrupt"])
@pytest.mark.parametrize("handler", ["book", "book_async"])
def test_a_handler_that_ends_the_process_stops_its_worker_and_what_is_executed_ends(
    shop: Shop, handler: str, by: str
) -> None:
    shop.submit("k", {"do": "leave-once", "by": by})
    worker = shop.start(handler)
    assert worker.code() == 1
    assert f"the handler raised {by}: the worker stops" in worker.text()
    assert "the worker has stopped" in worker.text()
    assert (shop.state("k"), shop.effects("k")) == ("unknown", 0)
    shop.work(handler)
    record = shop.record("k")
    assert (record.state.value, record.attempt, shop.effects("k")) == ("succeeded", 2, 1)


# -- what a worker holds ----------------------------------------------------------------------------------------------


def test_as_many_run_at_once_as_are_allowed_and_no_more_is_read(shop: Shop) -> None:
    for number in range(40):
        shop.submit(f"k{number}", at_gate(shop, gate=str(shop.folder / f"gate-{number}")))
    shop.start(concurrency=12)
    wait_until(lambda: len(list(shop.folder.glob("gate-*.*"))) == 12, "twelve are executed at once")
    assert shop.pending() == 12
    for number in range(40):
        (shop.folder / f"gate-{number}").touch()
    shop.done()


def test_with_too_many_that_wait_nothing_new_is_read(shop: Shop) -> None:
    for group in ("commands", "another"):
        shop.redis.xgroup_create(shop.stream, group, id="0", mkstream=True)
    for number in range(10):
        shop.submit(f"poison-{number}", {"do": "fail"})
    shop.submit("next")
    shop.start(concurrency=1, retry_base=3600, retry_cap=3600, constants={"commands.worker.MOST_WAITING": 3})
    wait_until(lambda: shop.state("poison-2") == "failed", "three of them wait")
    shop.start(consumer="another", max_attempts=1)
    shop.done("another")  # in that time the first one would have read them all
    assert (shop.pending(), shop.state("poison-3"), shop.state("next")) == (3, "absent", "absent")


def test_a_healthy_command_is_not_kept_waiting_by_all_that_are_put_off(shop: Shop) -> None:
    """More than a thousand of them: what is put off doesn't count against what may be held."""
    for number in range(1100):
        shop.submit(f"poison-{number}", {"do": "fail"})
    shop.submit("healthy")
    shop.start(retry_base=3600, retry_cap=3600, settings={"idempotency__lease": 60, "cache_timeout": 10})
    wait_until(lambda: shop.effects("healthy"), "the healthy one is executed, behind them")
    wait_until(lambda: shop.pending() == 1100, "it is acknowledged, and they wait")


def test_a_command_that_takes_longer_than_its_lease_is_left_to_its_worker(shop: Shop) -> None:
    shop.submit("k", at_gate(shop))
    lease = LASTING["idempotency__lease"]
    first = shop.start(concurrency=1, settings=LASTING)
    wait_until(lambda: waiting(shop), "it is executed")
    second = shop.start(settings=LASTING)
    entry = shop.redis.xpending_range(shop.stream, "commands", "-", "+", 1)
    for number in count():  # in all that time nobody else is given it, and the lease is renewed
        shop.submit(f"other-{number}")
        wait_until(partial(shop.effects, f"other-{number}"), "others are processed")
        if number > 10 and _seconds_since(shop, entry) > 1.5 * lease:
            break
        shop.redis.blpop([shop.namespace], timeout=0.1)
    wait_until(lambda: shop.pending() == 1, "the others are acknowledged")
    assert _idle(shop) < lease * 1000
    shop.gate.touch()
    shop.done()
    assert shop.effects("k") == 1
    assert "taken over" not in first.text() + second.text()


def _idle(shop: Shop) -> int:
    entries: Any = shop.redis.xpending_range(shop.stream, "commands", "-", "+", 1)
    (held,) = entries
    return int(held["time_since_delivered"])


def _seconds_since(shop: Shop, entry: Any) -> float:
    now: Any = shop.redis.time()
    seconds, microseconds = now
    return float(seconds + microseconds / 1e6 - int(entry[0]["message_id"].partition(b"-")[0]) / 1000)


def test_processed_entries_go_even_behind_one_that_waits(shop: Shop) -> None:
    """Trimming alone goes up to the oldest that is needed: one poison command would fill the stream up to its limit."""
    poison = shop.submit("poison", {"do": "fail"})
    shop.start(retry_base=3600, retry_cap=3600)
    shop.becomes("poison", "failed")
    for number in range(20):
        shop.submit(f"k{number}")
    wait_until(lambda: shop.pending() == 1 and shop.redis.xlen(shop.stream) == 1, "only the poison is left")
    left: Any = shop.redis.xrange(shop.stream)
    assert [entry for entry, _ in left] == [poison]


def test_an_entry_that_another_group_needs_stays(shop: Shop) -> None:
    shop.submit("k")
    shop.redis.xgroup_create(shop.stream, "another", id="0")
    shop.work()
    assert shop.redis.xlen(shop.stream) == 1
    shop.start(consumer="another")
    wait_until(lambda: shop.redis.xlen(shop.stream) == 0, "both have processed it")


# -- its end ----------------------------------------------------------------------------------------------------------


def test_sigterm_lets_what_is_executed_end_and_leaves_the_rest(shop: Shop) -> None:
    shop.submit("running", at_gate(shop))
    shop.submit("poison", {"do": "fail"})
    worker = shop.start(retry_base=3600, retry_cap=3600)
    wait_until(lambda: waiting(shop) and shop.state("poison") == "failed", "one is executed, one waits")
    worker.signal(signal.SIGTERM)
    worker.logs("stopping")
    late = shop.submit("late")
    shop.gate.touch()
    assert worker.code() == 0
    assert (shop.state("running"), shop.effects("running")) == ("succeeded", 1)
    assert shop.state("late") == "absent"
    assert shop.redis.xrange(shop.stream, late, late)
    assert 1 <= shop.pending() <= 2  # the poison, for others; the late one too, if the last read has brought it
    second = shop.start(max_attempts=2)
    second.logs("taken over")
    shop.done()
    assert [letter["key"] for letter in shop.letters()] == ["poison"]


def test_what_waits_when_a_worker_stops_is_for_others_as_soon_as_it_is_due(shop: Shop) -> None:
    shop.submit("poison", {"do": "fail"})
    lease = 3600
    worker = shop.start(retry_base=30, retry_cap=30, settings={"idempotency__lease": lease})
    shop.becomes("poison", "failed")
    assert worker.stop() == 0
    assert _idle(shop) > (lease - 31) * 1000  # abandoned when its pause is over, and not an hour later


def test_a_second_sigterm_ends_it_at_once_and_leaves_its_leases(shop: Shop) -> None:
    shop.submit("k", at_gate(shop))
    worker = shop.start()
    wait_until(lambda: waiting(shop), "it is executed")
    worker.signal(signal.SIGTERM)
    worker.logs("stopping")
    worker.signal(signal.SIGTERM)
    assert worker.code() == 0
    assert "1 commands are still being executed" in worker.text()
    assert (shop.state("k"), shop.pending()) == ("in-flight", 1)
    shop.gate.touch()
    shop.work()
    assert shop.effects("k") == 1


def test_a_handler_that_does_not_end_in_time_is_left_to_its_lease(shop: Shop) -> None:
    shop.submit("k", at_gate(shop))
    worker = shop.start(settings={"shutdown_timeout": 0.2})
    wait_until(lambda: waiting(shop), "it is executed")
    assert worker.stop() == 0  # although its thread still runs
    assert "are still being executed" in worker.text()


def test_a_worker_that_stops_is_struck_off_unless_something_is_left(shop: Shop) -> None:
    shop.submit("k")
    worker = shop.work()
    assert len(shop.redis.xinfo_consumers(shop.stream, "commands")) == 1
    assert worker.stop() == 0
    assert shop.redis.xinfo_consumers(shop.stream, "commands") == []


def test_a_stop_does_not_wait_for_a_redis_that_hangs(own_shop: Shop, own_redis: RedisServer) -> None:
    own_shop.submit("poison", {"do": "fail"})
    constants = {"work.STREAM_TIMEOUT": 1.0, "commands.worker.FAREWELL_SECONDS": 0.5}
    pauses: dict[str, Any] = {"retry_base": 3600, "retry_cap": 3600}
    worker = own_shop.start(constants=constants, settings={"shutdown_timeout": 0.5, "cache_timeout": 0.5}, **pauses)
    own_shop.becomes("poison", "failed")
    own_redis.pause()
    try:
        began = time.monotonic()
        assert worker.stop() == 0
        assert time.monotonic() - began < 40
    finally:
        own_redis.resume()


# -- Redis comes and goes ---------------------------------------------------------------------------------------------


def test_a_stream_that_is_deleted_is_begun_anew(shop: Shop) -> None:
    worker = shop.start().reads()
    wait_until(lambda: shop.redis.exists(shop.stream), "its group is there")
    shop.redis.delete(shop.stream)
    worker.logs("was not there, and was made")
    shop.submit("k")
    shop.done()
    assert shop.effects("k") == 1

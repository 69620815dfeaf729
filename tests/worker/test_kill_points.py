"""Each point at which a worker can die, and what becomes of the command: by the file of effects, which is no part of Redis.

The points before and after claim and complete are those of the worker's cache (tests/worker/mortal.py); those around the
effect are the handler's own. Nothing in the product knows of them.

Rules of docs/contract.md: R8.15, R8.17, R8.18, R8.19, R8.20, R8.21.
"""

from testing.servers import RedisServer
from testing.waiting import wait_until
from tests.worker.shop import LASTING, Shop, at_gate, waiting


def test_killed_before_its_claim_a_command_is_redelivered(shop: Shop) -> None:
    shop.submit("k")
    shop.start(dies_at="before-claim").dies()
    assert shop.state("k") == "absent"
    shop.work()
    assert (shop.state("k"), shop.effects("k")) == ("succeeded", 1)


def test_killed_after_its_claim_a_command_is_in_flight_until_the_lease_lapses(shop: Shop) -> None:
    shop.submit("k")
    shop.start(dies_at="after-claim", settings=LASTING).dies()
    assert (shop.state("k"), shop.effects("k")) == ("in-flight", 0)
    shop.submit("k")  # a copy, which nobody holds: what keeps it from being executed is the lease alone
    second = shop.start(settings=LASTING)
    second.logs(": in-flight")
    shop.done()
    record = shop.record("k")
    assert (record.state.value, record.attempt, shop.effects("k")) == ("succeeded", 2, 1)


def test_killed_after_the_effect_a_command_has_it_twice(shop: Shop) -> None:
    """The window: between the effect and its record nobody can know. See the next test for how to close it."""
    shop.submit("k", {"do": "die-after"})
    shop.start().dies()
    assert shop.effects("k") == 1
    shop.work()
    assert (shop.state("k"), shop.effects("k")) == ("succeeded", 2)


def test_killed_after_the_effect_a_handler_that_checks_first_has_it_once(shop: Shop) -> None:
    shop.submit("k", {"do": "die-after"})
    shop.start("book_once").dies()
    shop.work("book_once")
    assert (shop.record("k").attempt, shop.response("k").body, shop.effects("k")) == (2, b'"booked before"', 1)


def test_killed_after_its_success_was_recorded_a_command_is_skipped(shop: Shop) -> None:
    shop.submit("k")
    shop.start(dies_at="after-complete").dies()
    assert (shop.state("k"), shop.effects("k"), shop.pending()) == ("succeeded", 1, 1)
    shop.work()
    assert (shop.record("k").attempt, shop.effects("k")) == (1, 1)


def test_killed_after_its_success_was_recorded_its_submission_outlives_it_already(shop: Shop) -> None:
    """Else its key could be free while its execution is still known: it would be accepted anew, and skipped."""
    shop.accept("k", ttl_ms=60_000)
    shop.start(dies_at="after-complete").dies()
    assert (shop.state("k"), shop.pending()) == ("succeeded", 1)
    assert 60_000 < shop.redis.pttl(shop.place("k")) < shop.redis.pttl(shop.key("k"))
    shop.work()
    assert (shop.record("k").attempt, shop.effects("k")) == (1, 1)
    assert shop.redis.pttl(shop.place("k")) < shop.redis.pttl(shop.key("k"))


def test_killed_before_what_was_processed_is_acknowledged_a_whole_batch_is_skipped(shop: Shop) -> None:
    """Acknowledgements that wait for others die with their worker."""
    keys = [f"k{number}" for number in range(20)]
    for key in keys:
        shop.accept(key)
    worker = shop.start(constants={"commands.acknowledgements.SOON": 3600.0})
    wait_until(lambda: all(shop.state(key) == "succeeded" for key in keys), "all are processed")
    assert shop.pending() == len(keys)
    worker.kill()
    shop.work()
    assert sorted(shop.effect_lines()) == sorted(f"{key} 1 {worker.pid}" for key in keys)
    assert (shop.pending(), shop.redis.xlen(shop.stream)) == (0, 0)


def test_two_workers_get_a_command_at_once_and_one_executes_it(shop: Shop) -> None:
    for _ in range(2):
        shop.submit("k", at_gate(shop))
    workers = [shop.start(concurrency=1, settings=LASTING) for _ in range(2)]
    wait_until(lambda: any(": in-flight" in worker.text() for worker in workers), "one sees it in flight")
    wait_until(lambda: waiting(shop), "the other one executes it")
    assert waiting(shop) == 1
    shop.gate.touch()
    shop.done()
    assert shop.effects("k") == 1


def test_a_worker_that_lost_its_lease_can_not_record_its_success(shop: Shop) -> None:
    """Stopped for longer than its lease, while another worker took the command over; then it goes on."""
    shop.submit("k", at_gate(shop))
    first = shop.start().reads()
    wait_until(lambda: (shop.folder / f"gate.{first.pid}").exists(), "the first worker executes it")
    first.stall()
    shop.gate.touch()
    shop.work()
    done = shop.record("k")
    first.signal(18)  # SIGCONT
    first.logs("was taken over or resolved; its outcome is not recorded")
    assert shop.effects("k") == 2  # the first one's too: it was under way, and nothing can call it back
    assert shop.record("k") == done
    shop.submit("next")  # and the first one works on
    shop.done()
    assert first.stop() == 0


def test_republished_under_a_new_id_a_command_is_skipped(shop: Shop) -> None:
    shop.submit("k")
    shop.work()
    again = shop.submit("k")
    shop.done()
    assert shop.effects("k") == 1
    assert not shop.redis.xrange(shop.stream, again, again)  # acknowledged, and gone
    assert not shop.letters()


def test_another_payload_under_the_same_key_becomes_a_dead_letter(shop: Shop) -> None:
    shop.submit("k", {"amount": 1})
    shop.work()
    shop.submit("k", {"amount": 2})
    shop.submit("next")
    shop.done()
    (letter,) = shop.letters()
    assert (letter["key"], letter["dead.reason"]) == ("k", "key-reused")
    assert (shop.effects("k"), shop.effects("next"), shop.state("k")) == (1, 1, "succeeded")


def test_a_handler_that_always_fails_ends_in_a_dead_letter_and_holds_up_nobody(shop: Shop) -> None:
    shop.submit("poison", {"do": "fail", "name": "Alice"})
    shop.submit("next")
    # one at a time, with long pauses between: whoever waits here would be seen to
    worker = shop.work(concurrency=1, max_attempts=4, retry_base=0.4)
    (letter,) = shop.letters()
    record = shop.record("poison")
    assert shop.response("next").completed_at_ms < int(letter["dead.at"]), "it has waited for the other one's end"
    assert (record.state.value, record.attempt, shop.effects("poison")) == ("failed", 4, 0)
    assert (letter["dead.reason"], letter["dead.attempts"]) == ("exhausted", "4")
    assert (letter["dead.error_type"], letter["dead.error"]) == ("ValueError", "could not book for Alice")
    assert "Alice" not in worker.text()  # an error's text may repeat what the command holds


def test_a_command_that_kills_its_workers_becomes_a_dead_letter(shop: Shop) -> None:
    shop.submit("poison", {"do": "die"})
    for _ in range(2):
        shop.start(max_attempts=2).dies()
    shop.submit("next")
    shop.work(max_attempts=2)
    (letter,) = shop.letters()
    assert (letter["key"], letter["dead.reason"], letter["dead.attempts"]) == ("poison", "exhausted", "2")
    assert letter["dead.error"] == "Every attempt ended without an outcome, as when its process dies."
    assert (shop.state("poison"), shop.effects("next")) == ("failed", 1)


def test_redis_away_at_the_begin_is_no_attempt(own_shop: Shop, own_redis: RedisServer) -> None:
    worker = own_shop.start().reads()
    wait_until(lambda: own_shop.redis.exists(own_shop.stream), "its group is there")
    own_redis.stop()
    worker.logs("the stream can't be read")
    own_redis.start()
    own_shop.submit("k")
    own_shop.done()
    assert (own_shop.record("k").attempt, own_shop.effects("k")) == (1, 1)
    assert worker.text().count("the stream can't be read") <= 2  # one line for the outage, not one for each try


def test_redis_away_at_the_end_the_success_is_recorded_when_it_is_back(own_shop: Shop, own_redis: RedisServer) -> None:
    own_shop.submit("k", at_gate(own_shop))
    worker = own_shop.start().reads()
    wait_until(lambda: (own_shop.folder / f"gate.{worker.pid}").exists(), "it is executed")
    own_redis.stop()
    own_shop.gate.touch()
    wait_until(lambda: own_shop.effects("k"), "it has its effect")
    worker.logs("the outcome is not recorded yet")
    own_redis.start()
    own_shop.done()
    record = own_shop.record("k")
    assert (record.state.value, record.attempt, own_shop.effects("k")) == ("succeeded", 1, 1)


def test_a_stream_that_is_read_again_from_the_start_repeats_nothing(shop: Shop) -> None:
    keys = [f"k{number}" for number in range(20)]
    for key in keys:
        shop.submit(key)
    shop.redis.xgroup_create(shop.stream, "another", id="0")  # it reads nothing: all entries stay
    worker = shop.work()
    assert worker.stop() == 0
    shop.redis.xgroup_setid(shop.stream, "commands", "0")
    shop.work()
    assert sorted(shop.effect_lines()) == sorted(f"{key} 1 {worker.pid}" for key in keys)
    assert not shop.letters()

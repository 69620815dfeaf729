"""A worker whose Redis comes and goes."""

import time

from testing.servers import RedisServer
from testing.waiting import wait_until
from tests.worker.shop import LASTING, Shop, at_gate, waiting


def test_a_worker_may_be_there_before_redis(own_shop: Shop, own_redis: RedisServer) -> None:
    own_redis.stop()
    worker = own_shop.start().logs("nothing is processed until then").logs("the stream can't be read")
    own_redis.start()
    worker.logs("the stream can be read again")
    own_shop.submit("k")
    own_shop.done()
    assert own_shop.effects("k") == 1


def test_after_an_outage_nothing_is_taken_from_a_worker_that_lives(own_shop: Shop, own_redis: RedisServer) -> None:
    """Longer than the time after which an entry is taken for abandoned: then all entries look so."""
    # Half of it, less the pause before it reconnects, is the first one's to speak.
    lease = 2 * LASTING["idempotency__lease"]
    own_shop.submit("k", at_gate(own_shop))
    first = own_shop.start(settings={"idempotency__lease": lease})
    wait_until(lambda: waiting(own_shop), "it is executed")
    second = own_shop.start(settings={"idempotency__lease": lease}).reads()
    own_redis.stop()
    for worker in (first, second):
        worker.logs("the stream can't be read")
    wait_until(lambda: _older(own_shop, 1.2 * lease), "the entry is idle for long")
    own_redis.start()
    for worker in (first, second):
        worker.logs("the stream can be read again")
    own_shop.gate.touch()
    own_shop.done()
    assert own_shop.effects("k") == 1
    assert "taken over" not in first.text() + second.text()


def _older(shop: Shop, seconds: float) -> bool:
    marks = list(shop.folder.glob("gate.*"))
    return bool(marks) and time.time() - marks[0].stat().st_mtime > seconds


def test_after_an_outage_the_others_have_time_to_speak_first(own_shop: Shop, own_redis: RedisServer) -> None:
    lease, stream = 6.0, own_shop.stream
    own_shop.redis.xgroup_create(stream, "commands", id="0", mkstream=True)
    first, second = own_shop.submit("k1"), own_shop.submit("k2")
    own_shop.redis.xreadgroup("commands", "another", {stream: ">"})

    def make_old(entry: bytes) -> None:
        own_shop.redis.xclaim(stream, "commands", "another", 0, [entry], idle=3_600_000)
        own_shop.redis.xclaim(stream, "commands", "another", 0, [second], idle=0 if entry == first else 3_600_000)

    worker = own_shop.start(settings={"idempotency__lease": lease}).reads()
    make_old(first)
    worker.logs("taken over")  # a worker that has just begun waits too
    own_redis.stop()
    worker.logs("the stream can't be read")
    began = time.monotonic()
    own_redis.start()
    worker.logs("the stream can be read again")
    make_old(second)
    worker.logs("taken over", times=2)
    assert time.monotonic() - began > lease / 2  # from when it can be read; a quarter at most, if it did not care
    own_shop.done()


def test_while_nobody_can_be_told_of_a_success_nothing_is_acknowledged(own_shop: Shop, own_redis: RedisServer) -> None:
    own_shop.submit("k", at_gate(own_shop))
    worker = own_shop.start()
    wait_until(lambda: waiting(own_shop), "it is executed")
    own_redis.stop()
    own_shop.gate.touch()
    worker.logs("the outcome is not recorded yet")
    worker.kill()  # the success was known to nobody else
    own_redis.start()
    assert own_shop.pending() == 1
    own_shop.work()
    assert own_shop.effects("k") == 2  # the window

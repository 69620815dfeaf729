"""A command's ids, on every line of a worker's log about it and in its dead letter: record, entry, correlation.

Rules of docs/contract.md: R12.40.
"""

import json

from testing.servers import RedisServer
from testing.waiting import wait_until
from tests.worker.shop import LASTING, Shop, WorkerProcess, at_gate, waiting


def heads(worker: WorkerProcess) -> set[str]:
    """What stands before the colon of each line about a record."""
    lines = [json.loads(line)["message"] for line in worker.text().splitlines()]
    return {line.partition(": ")[0] for line in lines if line.startswith("record ")}


def test_ids_of_a_command_that_fails_and_is_given_up(shop: Shop) -> None:
    entry = shop.submit("k", {"do": "fail"}, correlation="c-17").decode()
    worker = shop.work(max_attempts=2)
    (letter,) = shop.letters()
    record = shop.command("k").command
    assert (letter["command"], letter["dead.entry"], letter["correlation"]) == (record, entry, "c-17")
    worker.logs("becomes a dead letter after 2 attempts")
    assert heads(worker) == {f"record {record}, message {entry}, correlation c-17"}


def test_ids_of_a_command_whose_result_and_outcome_can_not_be_kept(own_shop: Shop, own_redis: RedisServer) -> None:
    entry = own_shop.submit("k", at_gate(own_shop, then="odd"), correlation="c\n17").decode()
    worker = own_shop.start(settings={"cache_timeout": 0.3, **LASTING})
    wait_until(lambda: waiting(own_shop) == 1, "it is executed")
    own_redis.stop()
    own_shop.gate.touch()
    worker.logs("the outcome is not recorded yet").logs("the result can't be stored")
    own_redis.start()
    own_shop.done()
    record = own_shop.command("k").command
    ids = f", message {entry}, correlation c\\n17"
    assert heads(worker) == {f"record {record}{ids}", f"record {record}:commands{ids}"}

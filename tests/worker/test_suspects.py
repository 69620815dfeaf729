"""A command that kills its worker: its neighbours lose one attempt at most, and are processed.

Rules of docs/contract.md: R12.72.
"""

import pytest

from testing.waiting import wait_until
from tests.worker.shop import Shop, WorkerProcess, at_gate, waiting


@pytest.mark.parametrize(
    ("handler", "neighbours", "most"), [("die_or_book", 9, 4), ("die_or_book_slowly", 5, 3)], ids=["quick", "slow"]
)
def test_a_command_that_kills_its_worker_takes_no_neighbour_with_it(
    shop: Shop, handler: str, neighbours: int, most: int
) -> None:
    shop.submit("killer", at_gate(shop, then="die"))
    names = [f"neighbour-{number}" for number in range(neighbours)]
    for name in names:
        shop.submit(name, at_gate(shop))
    first = shop.start(handler, max_attempts=most)
    wait_until(lambda: waiting(shop) == 1 and shop.pending() == neighbours + 1, "all are executed")
    wait_until(lambda: all(shop.state(name) == "in-flight" for name in names), "all are claimed")
    shop.gate.touch()
    first.dies()
    worker: list[WorkerProcess] = []

    def done() -> bool:
        if not worker or worker[-1].ended():  # as a supervisor does
            worker.append(shop.start(handler, max_attempts=most))
        return shop.all_done()

    wait_until(done, "all is acknowledged")
    assert [letter["key"] for letter in shop.letters()] == ["killer"]
    for name in names:
        record = shop.record(name)
        assert record.state.value == "succeeded"
        assert record.attempt <= 2, "one attempt was lost, in the first death"

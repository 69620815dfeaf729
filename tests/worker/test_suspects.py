"""A command that kills its worker: its neighbours lose one attempt at most, and are processed."""

from testing.waiting import wait_until
from tests.worker.shop import Shop, WorkerProcess, at_gate, waiting


def test_a_command_that_kills_its_worker_takes_no_neighbour_with_it(shop: Shop) -> None:
    shop.submit("killer", at_gate(shop, then="die"))
    for number in range(9):
        shop.submit(f"neighbour-{number}", at_gate(shop))
    first = shop.start("die_or_book", max_attempts=4)
    wait_until(lambda: waiting(shop) == 1 and shop.pending() == 10, "all are executed")
    wait_until(lambda: all(shop.state(f"neighbour-{number}") == "in-flight" for number in range(9)), "all are claimed")
    shop.gate.touch()
    first.dies()
    worker: list[WorkerProcess] = []

    def done() -> bool:
        if not worker or worker[-1].ended():  # as a supervisor does
            worker.append(shop.start("die_or_book", max_attempts=4))
        return shop.all_done()

    wait_until(done, "all is acknowledged")
    assert [letter["key"] for letter in shop.letters()] == ["killer"]
    for number in range(9):
        record = shop.record(f"neighbour-{number}")
        assert record.state.value == "succeeded"
        assert record.attempt <= 2, "one attempt was lost, in the first death"

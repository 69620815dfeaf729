"""The small form of `scripts/bench append`: it measures each way, and what a number takes. Times are not judged."""

from loadtests import append


def test_each_way_is_measured_and_the_bytes_of_a_number() -> None:
    results = append.run(rounds=1, quick=True)
    assert {sample["way"] for sample in results.samples} == set(append.WAYS)
    assert all(sample["us"] > 0 for sample in results.samples)
    assert min(results.checks["bytes"].values()) > 30
    (table,) = append.tables(results)
    assert len(table.rows) == len(append.WAYS)

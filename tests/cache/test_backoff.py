from oncegate.cache.backoff import Backoff

LONGEST = 1.0
"""A draw that makes each pause as long as it may be."""


def test_pauses_double_up_to_the_cap() -> None:
    backoff = Backoff(base=0.5, cap=3)
    assert [backoff.pause(tries, lambda: LONGEST) for tries in (1, 2, 3, 4, 5)] == [0.5, 1, 2, 3, 3]


def test_a_pause_is_anything_down_to_nothing() -> None:
    backoff = Backoff(base=1, cap=60)
    assert backoff.pause(3, lambda: 0.0) == 0
    drawn = {backoff.pause(3) for _ in range(100)}
    assert len(drawn) > 50
    assert all(0 <= pause <= 4 for pause in drawn)


def test_however_often_it_was_tried_the_pause_is_a_number() -> None:
    backoff = Backoff(base=1, cap=300)
    assert backoff.pause(1_000_000, lambda: LONGEST) == 300
    assert backoff.pause(0, lambda: LONGEST) == 1


def test_less_jitter_leaves_a_least_pause() -> None:
    backoff = Backoff(base=1, cap=4, least=0.5, factor=1.5)
    assert [backoff.pause(tries, lambda: 0.0) for tries in (1, 2, 9)] == [0.5, 0.75, 2]
    assert [backoff.pause(tries, lambda: LONGEST) for tries in (1, 2, 9)] == [1, 1.5, 4]
    assert {Backoff(base=1, cap=4, least=1.0).pause(2) for _ in range(9)} == {2}

from oncegate.app.commands.backoff import Backoff, Schedule

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


def test_what_is_due_comes_out_in_its_order() -> None:
    schedule = Schedule()
    for entry, due in ((b"late", 9.0), (b"second", 2.0), (b"first", 1.0)):
        schedule.add(entry, due)
    assert schedule.next() == 1
    assert schedule.take(now=2.0) == [b"first", b"second"]
    assert schedule.take(now=2.0) == []
    assert (schedule.next(), len(schedule)) == (9, 1)


def test_an_entry_that_is_added_again_has_its_new_time_alone() -> None:
    schedule = Schedule()
    schedule.add(b"e", 1.0)
    schedule.add(b"e", 5.0)
    assert schedule.take(now=4.0) == []
    assert schedule.next() == 5
    schedule.add(b"e", 3.0)
    assert schedule.take(now=4.0) == [b"e"]
    assert schedule.take(now=9.0) == []
    assert (schedule.next(), len(schedule)) == (None, 0)


def test_what_waits_tells_for_how_long() -> None:
    schedule = Schedule()
    schedule.add(b"soon", 3.0)
    schedule.add(b"overdue", 1.0)
    assert schedule.remaining(now=2.0) == {b"soon": 1.0, b"overdue": 0.0}

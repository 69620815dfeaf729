from oncegate.app.commands.schedule import Schedule


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

"""What a dead letter says of its entry's death."""

from oncegate.cache.redis.streams.letter import MOST_BYTES, Death

DEATH = Death("commands", "exhausted", 3, "ValueError", "no such account \u20ac", "17-0", "host/1", 1790000000000)


def test_a_death_is_read_as_it_was_written() -> None:
    assert Death.read({b"command": b"c", **DEATH.fields()}) == DEATH


def test_of_a_long_error_as_much_is_kept_as_fits_and_any_text_can_be_written() -> None:
    odd = Death("commands", "rejected", 1, "E" * MOST_BYTES + "E", "\udcff" * MOST_BYTES, "17-0", "w", 0)
    assert (len(odd.fields()[b"dead.error_type"]), len(odd.fields()[b"dead.error"])) == (MOST_BYTES, MOST_BYTES)


def test_what_anybody_may_have_written_is_read_all_the_same() -> None:
    strange = Death.read({b"dead.attempts": b"-1", b"dead.at": b"9" * 5000, b"dead.error": b"\xff"})
    assert strange == Death("", "", 0, "", "\ufffd", "", "", 0)

from rich.console import Console

from loadtests.runs.commands import Plan, perform


def test_while_workers_are_killed_at_random_every_command_is_booked_once() -> None:
    """The load test, small: loadtests/runs/commands.py says what is done, and 20,000 of them are its default."""
    figures = perform(
        Plan(commands=120, workers=2, callers=6, kill_every=40, dies_one_in=12, fails_one_in=10, lease=1.5),
        Console(quiet=True),
    )
    assert figures.right, figures
    assert figures.kills >= 3, figures
    assert figures.deaths_in_the_window > 0, figures
    assert figures.copies_skipped >= figures.published_again > 0

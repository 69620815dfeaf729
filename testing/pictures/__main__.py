"""Makes docs/pictures anew: ``python -m testing.pictures``, or `scripts/pictures`; ``drawings`` or ``screens`` alone."""

import sys
import tempfile
from pathlib import Path

from testing.pictures import choice, runs, screens
from testing.pictures.drawing import sequence

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


def draw() -> None:
    """Write what is drawn."""
    (PICTURES / "choice.svg").write_text(choice.draw())
    for name in runs.RUNS:
        with tempfile.TemporaryDirectory() as folder:
            (PICTURES / f"{name}.svg").write_text(sequence(runs.run(name, Path(folder))))


def photograph() -> None:
    """Write what is photographed."""
    screens.take_all(PICTURES)


KINDS = {"drawings": draw, "screens": photograph}


def main(kinds: list[str]) -> None:
    """Write the pictures of these kinds, of all by default."""
    if not set(kinds) <= set(KINDS):
        raise SystemExit(f"scripts/pictures: give {' or '.join(KINDS)}, or nothing for all")
    PICTURES.mkdir(exist_ok=True)
    for name in kinds or KINDS:
        KINDS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])

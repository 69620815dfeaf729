"""Makes docs/pictures anew: ``python -m testing.pictures``, or `scripts/pictures`."""

import tempfile
from pathlib import Path

from testing.pictures import choice, runs
from testing.pictures.drawing import sequence

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


def main() -> None:
    """Write each picture."""
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / "choice.svg").write_text(choice.draw())
    for name in runs.RUNS:
        with tempfile.TemporaryDirectory() as folder:
            (PICTURES / f"{name}.svg").write_text(sequence(runs.run(name, Path(folder))))


if __name__ == "__main__":
    main()

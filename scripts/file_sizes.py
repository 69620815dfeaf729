"""Fails where a source file is longer than a person reads in one go."""

import sys
from pathlib import Path

MOST_LINES = 600
FOLDERS = ("app", "middleware", "cache", "src/oncegate", "testing", "tests", "scripts", "loadtests", "examples")


def main() -> int:
    """Print each file that is too long; the exit code."""
    files = [file for folder in FOLDERS for kind in ("py", "lua") for file in Path(folder).rglob(f"*.{kind}")]
    too_long = [(len(file.read_text("utf-8").splitlines()), file) for file in files]
    too_long = [(lines, file) for lines, file in too_long if lines > MOST_LINES]
    for lines, file in too_long:
        print(f"{file}: {lines} lines, more than {MOST_LINES}")
    return bool(too_long)


if __name__ == "__main__":
    sys.exit(main())

"""Describes an exception of a user's function for the log: its type and place, never its text, which may quote anything."""

import traceback
from pathlib import Path


def kind_and_place(error: BaseException) -> str:
    """``KeyError at shop.py:12``, one line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__qualname__}{place}"

"""Owner tokens are drawn many at a time, and no two claims have the same one: threads, forks and pauses notwithstanding."""

import subprocess
import sys
import threading
import time
from itertools import count
from types import FrameType
from typing import Any

import pytest

from oncegate.cache.record import TOKEN_BYTES
from oncegate.middleware.admission.owner_tokens import AT_ONCE, SECONDS, OwnerTokens


class Numbered:
    """Draws bytes that are never the same twice, and counts how often."""

    def __init__(self) -> None:
        self.draws = 0
        self._numbers = count()

    def __call__(self, size: int) -> bytes:
        self.draws += 1
        return b"".join([next(self._numbers).to_bytes(TOKEN_BYTES, "big") for _ in range(size // TOKEN_BYTES)])


def test_one_draw_is_for_many_tokens_of_one_instant() -> None:
    tokens = OwnerTokens(draw := Numbered())
    taken = [tokens.take(7.0) for _ in range(3 * AT_ONCE)]
    assert (len(set(taken)), draw.draws) == (3 * AT_ONCE, 3)
    assert {len(token) for token in taken} == {TOKEN_BYTES}


def test_what_was_drawn_is_not_used_later() -> None:
    tokens = OwnerTokens(draw := Numbered())
    tokens.take(7.0)
    tokens.take(7.0 + SECONDS)
    assert draw.draws == 2


def test_threads_never_get_the_same_token() -> None:
    """Each of them stops behind every single step, so that another one comes in between."""
    tokens, taken = OwnerTokens(Numbered()), [list[bytes]() for _ in range(4)]

    def step(frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes = True
        time.sleep(0)
        return step

    def take(into: list[bytes]) -> None:
        sys.settrace(step)
        for _ in range(10 * AT_ONCE):
            into.append(tokens.take(7.0))  # noqa: PERF401 - a step each

    threads = [threading.Thread(target=take, args=(into,)) for into in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = [token for into in taken for token in into]
    assert len(set(every)) == len(every) == 4 * 10 * AT_ONCE


FORKS = """
import os
from oncegate.middleware.admission.owner_tokens import AT_ONCE, TOKENS

TOKENS.take(7.0)
reads, writes = os.pipe()
if not os.fork():
    os.write(writes, b"".join([TOKENS.take(7.0) for _ in range(AT_ONCE)]))
    os._exit(0)
os.close(writes)
with open(reads, "rb") as answer:
    theirs = answer.read()
ours = [TOKENS.take(7.0) for _ in range(AT_ONCE)]
print(len(theirs) // 16, sum(theirs[at : at + 16] in ours for at in range(0, len(theirs), 16)))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows never forks")
def test_a_forked_process_draws_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == [str(AT_ONCE), "0"], done.stderr

"""Rounds of chance, killed, stalled and raced for real (tests/system/rounds.py): a few of each kind, or 200 with ``--long``.

Rules of docs/contract.md: R3.13, R3.25, R4.25, R4.34, R5.32, R6.25.
"""

import random
from pathlib import Path

import pytest

from tests.system.rounds import KINDS

FEW, MANY = 3, 200


async def go_through(kind: str, rounds: int, folder: Path) -> None:
    """Raises `AssertionError` with the seed of the round that failed."""
    async with KINDS[kind](folder) as one:
        for number in range(rounds):
            seed = f"{kind} {number}"
            try:
                await one(random.Random(seed))
            except AssertionError as error:
                raise AssertionError(f"round {seed!r}: {error}") from error


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_few_rounds(kind: str, tmp_path: Path) -> None:
    await go_through(kind, FEW, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
async def test_two_hundred_rounds(kind: str, tmp_path: Path) -> None:
    await go_through(kind, MANY, tmp_path)

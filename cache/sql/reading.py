"""Reads of records from their rows: whole, or the head alone, which is all that a list needs of a large one."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from oncegate.cache.codec import body_begins, decode
from oncegate.cache.encryption import Encryption, off_loop
from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.record import Claim
from oncegate.cache.sql.rows import Row, Rows

PEEK_BYTES: Final = 16384
"""Of a record in a list: more than its head has, as a rule."""


async def read(rows: Rows, key: str, encryption: Encryption | None, most: int = 0) -> Claim | None:
    """The record of ``key``; of more than ``most`` bytes without its body (0: whole). Raises `RecordUnreadable`."""
    found = await rows.read(key, most)
    if found is not None and len(found[0].data) < found[1]:
        end = body_begins(found[0].data)
        found = await rows.read(key) if end > most else _cut(found, end)
    return None if found is None else await _as_claim(key, *found, encryption)


async def peek_all(
    rows: Rows, keys: Sequence[str], encryption: Encryption | None
) -> list[Claim | RecordUnreadable | None]:
    """See `PeeksAtMany`."""
    found = await rows.read_all(keys, PEEK_BYTES)
    return [await _peeked(rows, key, found[key], encryption) if key in found else None for key in keys]


async def _peeked(
    rows: Rows, key: str, found: tuple[Row, int], encryption: Encryption | None
) -> Claim | RecordUnreadable | None:
    row, size = found
    try:
        if len(row.data) == size:
            return await _as_claim(key, row, size, encryption)
        end = body_begins(row.data)
        if end > len(row.data):
            return await read(rows, key, encryption, PEEK_BYTES)
        return await _as_claim(key, *_cut(found, end), encryption)
    except RecordUnreadable as error:
        return error


def _cut(found: tuple[Row, int], end: int) -> tuple[Row, int]:
    row, size = found
    return row._replace(data=row.data[:end]), size


async def _as_claim(key: str, row: Row, size: int, encryption: Encryption | None) -> Claim:
    cut = size if len(row.data) < size else -1
    record = await off_loop(
        0 if encryption is None else len(row.data),
        partial(decode, row.data, row.remaining_ms, traced=True, size=cut, encryption=encryption, key=key.encode()),
    )
    return Claim(False, record, row.remaining_ms)

"""The fixture `records`, as a plugin of pytest's: ``pytest_plugins = ["oncegate.testing.records"]`` in the top conftest.py.

A module of its own, since pytest wants to be the first who imports a plugin.
"""

from collections.abc import Iterator

import pytest

from oncegate.testing.app_records import AppRecords


@pytest.fixture
def records() -> Iterator[AppRecords]:
    """Records of this test alone: see `AppRecords`."""
    made = AppRecords()
    yield made
    made.restore()

"""For tests of your own, by pytest: of an app that enforces keys, and of a cache. The extra ``testing`` brings what it needs.

An app: ``pytest_plugins = ["oncegate.testing.records"]`` in the conftest.py at the top gives the fixture `records`, an
`AppRecords`.
A cache: derive a test class from `CacheBehaviours`, with a fixture ``store`` that gives a `Store` for each test.
"""

try:
    import pytest
    import pytest_asyncio  # noqa: F401 - runs the tests
except ImportError as missing:  # pragma: no cover
    raise ImportError("oncegate.testing needs pytest: pip install 'oncegate[testing]'") from missing

pytest.register_assert_rewrite(*(f"oncegate.testing.{part}" for part in ("claims", "looking", "resolutions", "store")))

from oncegate.testing.app_records import AppRecords  # noqa: E402 - after what has its assertions rewritten
from oncegate.testing.claims import Claims  # noqa: E402 - as above
from oncegate.testing.looking import Looking  # noqa: E402 - as above
from oncegate.testing.resolutions import Resolutions  # noqa: E402 - as above
from oncegate.testing.store import Store  # noqa: E402 - as above

__all__ = ["AppRecords", "CacheBehaviours", "Store"]


@pytest.mark.asyncio
class CacheBehaviours(Claims, Resolutions, Looking):
    """The promises of every cache, test by test; each gets the fixture ``store``."""

"""What the tests of decorated functions share."""

from typing import Any

import pytest

from oncegate.cache.store import Cache
from tests.middleware.decorated import Till


@pytest.fixture
def till() -> Till:
    return Till()


@pytest.fixture
def options(cache: Cache, namespace: str) -> dict[str, Any]:
    """Of `idempotent`."""
    return {"cache": cache, "namespace": namespace}

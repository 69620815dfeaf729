"""What is put into apps loads nothing of the gateway. (import-linter sees who imports what; this, what that brings along.)"""

import subprocess
import sys

import pytest

PARTS = ("oncegate", "oncegate.backend", "oncegate.client", "oncegate.fastapi", "oncegate.faststream")
LOADED = """
import sys, {module}
for name in getattr({module}, "__all__", []): getattr({module}, name)
print(*[name for name in sys.modules if name.startswith("oncegate.app")])
"""


@pytest.mark.parametrize("module", [*PARTS, "oncegate.prometheus", "oncegate.sql", "oncegate.testing"])
def test_what_is_put_into_an_app_loads_nothing_of_the_gateway(module: str) -> None:
    loaded = subprocess.run([sys.executable, "-c", LOADED.format(module=module)], capture_output=True, text=True)
    assert (loaded.returncode, loaded.stdout.split()) == (0, []), loaded.stderr

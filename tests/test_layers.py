"""What is put into apps loads nothing of the gateway. (import-linter sees who imports what; this, what that brings along.)"""

import ast
import subprocess
import sys
from pathlib import Path

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


def test_oncegate_sql_imports_one_module_of_the_core() -> None:
    files = [*(Path(__file__).parent.parent / "src/oncegate/sql").rglob("*.py")]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text("utf-8")))]
    imported = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    imported |= {each.name for node in nodes if isinstance(node, ast.Import) for each in node.names}
    core = {name for name in imported if name.startswith("oncegate") and not name.startswith("oncegate.sql")}
    assert core == {"oncegate.middleware.consumers.sql_interface"}

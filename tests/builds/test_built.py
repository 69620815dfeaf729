"""The compiled wheel says that it is compiled, of which commit, and what was linked into it."""

import json
import re
from importlib.metadata import distribution, version

import pytest

from testing.command_line import invoke

pytestmark = pytest.mark.compiled


def test_its_version_names_commit_and_build() -> None:
    line = invoke("--version").stdout
    assert re.fullmatch(r"oncegate \S+, commit ([0-9a-f]{40}( and changes)?|unknown), compiled\n", line)


def test_its_bill_of_materials_names_what_is_linked_into_it() -> None:
    text = distribution("oncegate").read_text("sboms/oncegate.cdx.json")
    (inside,) = json.loads(text or "")["metadata"]["component"]["components"]
    assert (inside["name"], inside["version"]) == ("mypyc/lib-rt", version("mypy"))

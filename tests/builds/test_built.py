"""The compiled wheel says that it is compiled, of which commit, and what was linked into it."""

import json
import re
from importlib.metadata import version
from pathlib import Path

import pytest

import oncegate
from testing.command_line import invoke

pytestmark = pytest.mark.compiled


def test_its_version_names_commit_and_build() -> None:
    line = invoke("--version").stdout
    assert re.fullmatch(r"oncegate \S+, commit ([0-9a-f]{40}( and changes)?|unknown), compiled, CPython [\d.]+\n", line)


def test_its_bill_of_materials_names_what_is_linked_into_it() -> None:
    # Beside the package: the checkout has metadata of its own.
    (bill,) = Path(str(oncegate.__file__)).parents[1].glob("oncegate-*.dist-info/sboms/oncegate.cdx.json")
    (inside,) = json.loads(bill.read_text("utf-8"))["metadata"]["component"]["components"]
    assert (inside["name"], inside["version"]) == ("mypyc/lib-rt", version("mypy"))

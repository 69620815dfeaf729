"""The tests that run on the compiled build, too, are those of the rooms in which something is compiled."""

from scripts.build_backend import ROOT
from scripts.compiled_tests import DOORS, files


def test_each_room_with_a_compiled_module_has_its_tests_among_them() -> None:
    chosen = files()
    assert chosen[0] == "tests/builds"
    for name in ("app/gateway/test_fast_path.py", "app/server/test_garbage.py", "cache/test_law.py"):
        assert f"tests/{name}" in chosen
    assert [name for name in chosen if "/cli/" in name or "cluster" in name] == []


def test_what_is_named_is_there() -> None:
    for name in (*files(), *DOORS):
        path, _, test = name.partition("::")
        assert (ROOT / path).exists()
        assert not test or f"def {test}(" in (ROOT / path).read_text("utf-8")

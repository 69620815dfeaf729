"""Names: what users see has one of its own, and nothing has a verb of speech, whose object a reader would have to guess."""

import ast
import builtins
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("app", "cache", "middleware", "src/oncegate")
PUBLIC = (
    "oncegate",
    *(f"oncegate.{room}" for room in ("backend", "client", "fastapi", "faststream", "prometheus", "sql", "testing")),
)
SPEECH = {"ask", "asked", "asks", "hear", "heard", "said", "say", "says", "tell", "tells", "told"}


@cache
def defined(room: str) -> list[ast.AST]:
    """What the sources of ``room`` are made of. (Links lead from src/oncegate to the other rooms, and are not followed.)"""
    files = sorted((ROOT / room).rglob("*.py"))
    return [node for file in files for node in ast.walk(ast.parse(file.read_text("utf-8")))]


def name_of(node: ast.AST) -> str:
    """The name that ``node`` gives to something; empty where it gives none."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
        case ast.alias(asname=str(name)) | ast.MatchAs(name=str(name)):
            return name
    return ""


def seen() -> list[tuple[str, str]]:
    """What users see: the public modules' names, by the module."""
    return [(module, name) for module in PUBLIC for name in import_module(module).__all__]


def test_what_users_see_shares_its_name_with_no_other_class() -> None:
    """Public names, and errors, which tracebacks show: one name is one thing."""
    classes = [node for room in ROOMS for node in defined(room) if isinstance(node, ast.ClassDef)]
    counted = Counter(node.name for node in classes)
    errors = _errors(classes)
    public = {name for _, name in seen()}
    assert len(errors) > 60
    assert len(public) > 100
    assert {name for name in errors | public if counted[name] > 1} == set()


def _errors(classes: list[ast.ClassDef]) -> set[str]:
    """Those of Python's, and what is derived from one that is an error."""
    errors = {name for name, each in vars(builtins).items() if isinstance(each, type) and issubclass(each, Exception)}
    for _ in classes:
        derived = {node.name for node in classes if errors & {ast.unparse(base) for base in node.bases}}
        if derived <= errors:
            break
        errors |= derived
    return {node.name for node in classes} & errors


def test_what_users_see_has_one_name() -> None:
    """What a traceback or a ``repr`` calls it can be imported: nothing is exported under another name than its own."""
    found = [(name, getattr(import_module(module), name)) for module, name in seen()]
    classes = [(name, each) for name, each in found if isinstance(each, type)]
    assert len(classes) > 90
    assert [name for name, each in classes if each.__name__ != name] == []
    things: dict[str, object] = {}
    for name, each in found:
        assert things.setdefault(name, each) is each, name  # the same in each module


def test_nothing_is_named_by_a_verb_of_speech() -> None:
    """(Tests, in `oncegate.testing`, have sentences for names.)"""
    names = [{name_of(node) for node in defined(room)} for room in (*ROOMS, "tests", "testing", "loadtests")]
    assert all(len(some) > 500 for some in names)
    spoken = {name for some in names for name in some if SPEECH & set(name.strip("_").lower().split("_"))}
    assert {name for name in spoken if not name.startswith("test_")} == set()

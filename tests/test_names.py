"""Names: each class has one of its own, and nothing is named by a verb of speech, whose object a reader would have to guess."""

import ast
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("app", "cache", "middleware", "src/oncegate")
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


def test_every_class_has_a_name_of_its_own() -> None:
    classes = [[node.name for node in defined(room) if isinstance(node, ast.ClassDef)] for room in ROOMS]
    assert all(len(names) > 40 for names in classes)
    counted = Counter(name for names in classes for name in names)
    assert {name for name, count in counted.items() if count > 1} == set()


def test_no_type_variable_has_a_class_s_name() -> None:
    nodes = [node for room in ROOMS for node in defined(room)]
    variables = {
        ast.literal_eval(call.args[0]) for call in nodes if isinstance(call, ast.Call) and _is_type_variable(call)
    }
    assert len(variables) > 10
    assert variables & {node.name for node in nodes if isinstance(node, ast.ClassDef)} == set()


def _is_type_variable(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "TypeVar"


def test_what_modules_import_from_the_two_lower_layers_has_a_name_of_its_own() -> None:
    """Functions and constants, that is. (What is defined nowhere but imported is another layer's, or a re-export.)"""
    homes: dict[str, set[str]] = defaultdict(set)
    for node in [each for room in ROOMS for each in defined(room)]:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            ("oncegate.cache.", "oncegate.middleware.")
        ):
            module = (ROOT / (node.module or "").removeprefix("oncegate.").replace(".", "/")).with_suffix(".py")
            for name in {each.name for each in node.names if each.name.islower() or each.name.isupper()} & _defined_by(
                module
            ):
                homes[name].add(node.module or "")
    assert len(homes) > 100
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


@cache
def _defined_by(module: Path) -> set[str]:
    """The names that a module itself gives, at its top."""
    nodes = ast.parse(module.read_text("utf-8")).body if module.exists() else []
    targets = [node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", node) for node in nodes]
    return {name_of(each) for each in targets}


def test_nothing_is_named_by_a_verb_of_speech() -> None:
    """(Tests, in `oncegate.testing`, have sentences for names.)"""
    names = [{name_of(node) for node in defined(room)} for room in (*ROOMS, "tests", "testing", "loadtests")]
    assert all(len(some) > 500 for some in names)
    spoken = {name for some in names for name in some if SPEECH & set(name.strip("_").lower().split("_"))}
    assert {name for name in spoken if not name.startswith("test_")} == set()

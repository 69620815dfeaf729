"""Which instructions are whose: callgrind's counts by function, of compiled oncegate and of interpreted, in one spelling.

A function is ``MODULE:NAME`` (``app.server.parser:InboundParser.feed``) in both builds. What it calls that is no such function
(CPython, libc, uvloop's C, extension modules) is its own: callgrind skips their names (``--fn-skip``), so that each instruction
is counted once, for the innermost function of oncegate on the stack, or of a Python package beside it.

- Compiled functions have names of their own in C, ``CPyDef_``.
- Interpreted ones don't: all are ``_PyEval_EvalFrameDefault``. So each frame is evaluated through a C function of its own
  (PEP 523, `frames/`). That counts exactly, and costs a call in C per call of Python, which CPython saves otherwise: so a
  request's whole is counted without it, too.
"""

import ast
import re
import shutil
import string
import subprocess
import sysconfig
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from loadtests.processes import HERE, ROOT, BenchError

FRAMES = HERE / "frames"
_COMPILED, _INTERPRETED = "CPyDef_", "counted_frame_"
BENEATH = "beneath"
"""What runs beneath all functions: the event loop in C, which calls them."""
PACKAGE = ROOT / "src" / "oncegate"


def skipped() -> list[str]:
    """Options of callgrind: all functions but those that are counted, by each prefix that leads away from them."""
    kept = (_COMPILED, _INTERPRETED)
    letters = string.ascii_letters + string.digits + "_"
    names = {name[:end] + letter for name in kept for end in range(len(name)) for letter in letters}
    apart = sorted(each for each in names if not any(name.startswith(each) for name in kept))
    return [f"--fn-skip={each}*" for each in apart]


def built(folder: Path) -> None:
    """Make ``folder`` one that has an interpreter, by PYTHONPATH, evaluate each function's frames apart.

    Raises `BenchError` where there is no C compiler.
    """
    source, target = FRAMES / "counted_frames.c", folder / "counted_frames.so"
    # Alike functions would be made one, and a call at a function's end a jump, else.
    flags = ["-O1", "-shared", "-fPIC", "-fno-ipa-icf", "-fno-optimize-sibling-calls"]
    command = ["gcc", *flags, f"-I{sysconfig.get_path('include')}", str(source), "-o", str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise BenchError("needs a C compiler: apt-get install gcc") from None
    if done.returncode:
        raise BenchError(f"counted_frames.c is not compiled: {done.stderr.strip().splitlines()[-1]}")
    shutil.copy(FRAMES / "sitecustomize.py", folder)


def costs(dump: Path) -> Counter[str]:
    """Instructions of each function of C in a dump of callgrind's, what it calls left out."""
    names: dict[str, str] = {}
    found: Counter[str] = Counter()
    function, behind_a_call = "", False
    for line in dump.read_text(errors="replace").splitlines():
        if line.startswith("fn="):
            number, _, name = line[3:].partition(" ")
            function = names.setdefault(number, name)
        elif line.startswith("cfn="):
            number, _, name = line[4:].partition(" ")
            if name:
                names.setdefault(number, name)
        elif line.startswith("calls="):
            behind_a_call = True  # the next line is what was spent in it
        elif line[:1] in "0123456789+-*" and line:
            if not behind_a_call:
                found[function] += int(line.split()[1])
            behind_a_call = False
    return found


def calls(dump: Path) -> Counter[str]:
    """How often each function of C was called, in a dump of callgrind's in which none is skipped."""
    names: dict[str, str] = {}
    found: Counter[str] = Counter()
    called = ""
    for line in dump.read_text(errors="replace").splitlines():
        if line.startswith(("fn=", "cfn=")):
            number, _, name = line.partition("=")[2].partition(" ")
            called = names.setdefault(number, name) if name else names[number]
        elif line.startswith("calls="):
            found[called.partition("'")[0]] += int(line[6:].split()[0])
    return found


MAKERS = {
    "bytes": ("PyBytes_FromStringAndSize", "PyBytes_FromString", "PyBytes_Concat", "_PyBytes_FromSize"),
    "str": ("PyUnicode_New",),
    "tuple": ("PyTuple_New", "PyTuple_Pack", "_PyTuple_FromArray", "_PyTuple_FromArraySteal"),
    "list": ("PyList_New", "_PyList_FromArraySteal"),
    "dict": ("PyDict_New", "_PyDict_FromItems", "PyDict_Copy", "_PyDict_NewPresized"),
    "bound method": ("PyMethod_New",),
    "builtin method": ("PyCMethod_New",),
    "int": ("_PyLong_New",),
    "float": ("PyFloat_FromDouble",),
    "iterator of a list": ("list_iter",),
}
"""Functions of CPython that make an object, by its type. One that gcc has put into its callers isn't seen."""
ALL = "_Py_NewReference"
"""What each new object passes, taken from a list of free ones or not."""


def made(found: Counter[str]) -> Counter[str]:
    """How many objects of each type were made: CPython's own, and those of compiled classes, by name."""
    kinds = {function: kind for kind, makers in MAKERS.items() for function in makers}
    result: Counter[str] = Counter()
    for name, times in found.items():
        if name in kinds:
            result[kinds[name]] += times
        elif name.startswith(_COMPILED) and name.endswith("_setup") and "trait_vtable" not in name:
            result[of_compiled(name).partition(":")[2]] += times
    result["all objects"] = found[ALL]
    return result


def named(found: Counter[str], listed: Path) -> Counter[str]:
    """The same by ``MODULE:NAME``, or by package; what is no function of Python is `BENEATH`.

    Raises `BenchError` where functions could not be told apart.
    """
    numbers = dict(line.split(" ", 1) for line in listed.read_text().splitlines())
    result: Counter[str] = Counter()
    for name, instructions in found.items():
        name = name.partition("'")[0]  # a recursive call's
        if name.startswith(_INTERPRETED):
            number = name.removeprefix(_INTERPRETED).lstrip("0")
            if not number:
                raise BenchError("there are more functions than counted_frames.c has numbers for")
            name = numbers[number]
        elif name.startswith(_COMPILED):
            name = of_compiled(name)
        else:
            name = BENEATH
        result[name] += instructions
    return result


@cache
def defined(root: Path = PACKAGE) -> dict[str, tuple[str, ...]]:
    """The functions that each module defines, by their qualified names, and its classes."""
    modules = {}
    for top in ("app", "middleware", "cache"):
        for path in sorted((root / top).rglob("*.py")):
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            modules[module] = tuple(_names(ast.parse(path.read_text()).body, ""))
    return modules


def _names(body: Iterable[ast.AST], within: str) -> Iterable[str]:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{within}{node.name}"
            yield name
            inner = name + ("." if isinstance(node, ast.ClassDef) else ".<locals>.")
            yield from _names(node.body, inner)


@cache
def of_compiled(symbol: str) -> str:
    """``MODULE:NAME`` of a function of mypyc's. Raises `BenchError` where its module can't be told."""
    rest = symbol.removeprefix(_COMPILED).partition(".")[0]  # behind a dot is what gcc made of it
    suffixes: dict[str, list[str]] = {}
    for module in defined():
        parts = module.split(".")
        for start in range(len(parts)):
            suffixes.setdefault("___".join(parts[start:]) + "___", []).append(module)
    for suffix in sorted(suffixes, key=len, reverse=True):
        if rest.startswith(suffix):
            name = rest.removeprefix(suffix)
            fits = [(module, found) for module in suffixes[suffix] if (found := _function(module, name))]
            if len(fits) == 1:
                return f"{fits[0][0]}:{fits[0][1]}"
    raise BenchError(f"no module of oncegate has the compiled function {symbol}")


_MADE_BY_MYPYC = re.compile(
    r"_(gen|obj|env)(_.*)?$|_(trait_vtable_setup|setup|clear|dealloc|traverse|free|new)$|__[A-Za-z]+_glue$"
)


def _function(module: str, name: str) -> str | None:
    """The function or class that ``name`` in C is a part of: its own of a generator's step, its class of what makes an object."""
    plain = re.sub(r"^__mypyc_+(3_)?", "", name)
    if "lambda__" in plain:
        return "<lambda>"
    plain = _MADE_BY_MYPYC.sub("", plain)
    wanted = {each.replace("___3_", "___").replace("___", ".").lstrip("_") for each in (name, plain)}
    wanted.add(plain.replace("___3_", "___").lstrip("_"))
    plainly = name.replace("___3_", "___").replace("___", ".")
    if plainly in defined()[module]:
        return plainly
    for function in defined()[module]:
        parts = function.replace(".<locals>", "").split(".")
        spellings = {function, f"{function}.__init__", parts[-1], "_".join([parts[-1], *reversed(parts[:-1])])}
        private = {re.sub(r"(^|\.)_+", r"\1", each) for each in spellings}
        if wanted & {each.lstrip("_") for each in spellings} or wanted & private:
            return function
    return None

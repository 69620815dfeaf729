"""The two builds of oncegate that are measured: from source, and the compiled one (docs/decisions/0012-compiled.md)."""

from pathlib import Path

from loadtests import machine
from loadtests.processes import ROOT, BenchError, Process, run_whole
from loadtests.report import Results, console

SOURCE, COMPILED = "source", "compiled"
BUILDS = (SOURCE, COMPILED)
LIBRARY = "oncegate__mypyc"
"""The shared library that all compiled modules are in."""
SCRIPT = ROOT / "scripts" / "compile"
_NONE = 3
"""What scripts/compile ends with where there is no compiled build, and none can be made."""


def compiled(*, quick: bool, script: Path = SCRIPT) -> Path | None:
    """The folder of the compiled build, for PYTHONPATH. It is built where it is missing, unless ``quick``.

    ``None`` where there is none; then a line says so. Raises `BenchError` where it can't be built for another reason than
    that there is no compiler.
    """
    done = run_whole([script, *(["--if-there"] if quick else [])])
    if done.returncode == _NONE:
        console.print("scripts/bench: measures without the compiled build")
        return None
    if done.returncode:
        raise BenchError("scripts/compile failed: what it said stands above")
    return Path(done.stdout.strip())


def chosen(build: str | None, *, quick: bool, script: Path = SCRIPT) -> Path | None:
    """The folder of the compiled build, or ``None`` for the one from source: the one that was asked for.

    Where nothing was, the compiled one, if there is one. Raises `BenchError` where it was asked for and there is none.
    """
    folder = None if build == SOURCE else compiled(quick=quick, script=script)
    if build == COMPILED and folder is None:
        raise BenchError("there is no compiled build: what scripts/compile said stands above")
    return folder


def measured(folder: Path | None) -> dict[str, Path | None]:
    """Each build that there is, and what it has for a PYTHONPATH."""
    return {SOURCE: None} if folder is None else {SOURCE: None, COMPILED: folder}


def of(results: Results) -> list[str]:
    """The builds that were measured. Results that don't say are from before there was a compiled one."""
    found: list[str] = results.settings.get("builds", [SOURCE])
    return found


def verify(server: Process, *, compiled: bool) -> None:
    """Raise `BenchError` where a server runs the other build than it should."""
    if machine.maps(server.pid, LIBRARY) is not compiled:
        raise BenchError(f"{server.name} runs {'the sources' if compiled else 'the compiled build'}")

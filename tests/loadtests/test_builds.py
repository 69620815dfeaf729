"""Which builds are measured: the compiled one where there is one."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from loadtests import builds, machine
from loadtests.processes import BenchError

WITHOUT = "scripts/bench: measures without the compiled build\n"


def script(folder: Path, *, prints: str = "", code: int = 0) -> Path:
    """Something in the place of scripts/compile, which notes its arguments."""
    path = folder / "compile"
    path.write_text(f'#!/bin/sh\necho "$@" >{folder}/arguments\necho "{prints}"\nexit {code}\n')
    path.chmod(0o755)
    return path


def test_a_whole_run_has_it_compiled_and_a_quick_one_takes_what_is_there(tmp_path: Path) -> None:
    stands_for = script(tmp_path, prints="/somewhere/site")
    assert builds.compiled(quick=False, script=stands_for) == Path("/somewhere/site")
    assert (tmp_path / "arguments").read_text() == "\n"
    assert builds.compiled(quick=True, script=stands_for) == Path("/somewhere/site")
    assert (tmp_path / "arguments").read_text() == "--if-there\n"


def test_without_a_compiler_it_goes_on_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert builds.compiled(quick=False, script=script(tmp_path, code=3)) is None
    assert capsys.readouterr().err == WITHOUT


def test_a_build_that_fails_ends_the_bench(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="scripts/compile failed"):
        builds.compiled(quick=False, script=script(tmp_path, code=1))


def test_the_build_that_was_asked_for_is_chosen(tmp_path: Path) -> None:
    there = script(tmp_path, prints="/site")
    assert builds.chosen(None, quick=True, script=there) == Path("/site")
    assert builds.chosen("compiled", quick=True, script=there) == Path("/site")
    assert builds.chosen("source", quick=True, script=there) is None
    none = script(tmp_path, code=3)
    assert builds.chosen(None, quick=True, script=none) is None
    with pytest.raises(BenchError, match="there is no compiled build"):
        builds.chosen("compiled", quick=True, script=none)


def test_told_to_stop_while_it_is_built_it_leaves_nothing_running(tmp_path: Path) -> None:
    building = tmp_path / "compile"
    building.write_text(
        f"#!/bin/sh\nsleep 1000 &\necho $! >{tmp_path}/begun\nmv {tmp_path}/begun {tmp_path}/pid\nwait\n"
    )
    building.chmod(0o755)

    def stop_once_it_is_built() -> None:
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    def stop(*_: object) -> None:
        raise SystemExit(1)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        watch = threading.Thread(target=stop_once_it_is_built)
        watch.start()
        with pytest.raises(SystemExit):
            builds.compiled(quick=False, script=building)
        watch.join()
    finally:
        signal.signal(signal.SIGTERM, before)
    compiler = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 30
    while machine.runs(compiler) and time.monotonic() < until:  # whose child it has become reaps it
        time.sleep(0.01)
    assert not machine.runs(compiler)


def test_the_script_and_the_bench_agree_on_what_there_is() -> None:
    """The script itself: it finds a build, and the library that a server is known by is in it; or it says that there is none."""
    folder = builds.compiled(quick=True)
    assert folder is None or [path.suffix for path in folder.glob(f"{builds.LIBRARY}*")] == [".so"]

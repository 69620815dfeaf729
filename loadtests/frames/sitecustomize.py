"""Loaded by the interpreter whose functions `scripts/bench budget` counts: gives each function of oncegate a number.

``BENCH_FRAMES`` names the file that gets ``NUMBER MODULE:NAME`` for each. Other packages have one number each.
"""

import os
from types import CodeType

import counted_frames  # type: ignore[import-not-found]  # built at the run, beside this file

_listed = open(os.environ.pop("BENCH_FRAMES"), "w", buffering=1)  # noqa: PTH123, SIM115  pathlib is not loaded for it; open as long as the process runs
_numbers: dict[str, int] = {}
_MARK = f"{os.sep}oncegate{os.sep}"


def _name(code: CodeType) -> str:
    path = code.co_filename.removesuffix(".py")
    if _MARK in path and f"{os.sep}bin{os.sep}" not in path:
        return f"{path.rpartition(_MARK)[2].replace(os.sep, '.')}:{code.co_qualname}"
    for mark in ("site-packages", "lib-dynload", "python3.11"):
        if f"{os.sep}{mark}{os.sep}" in path:
            return path.rpartition(f"{os.sep}{mark}{os.sep}")[2].partition(os.sep)[0]
    return path.rpartition(os.sep)[2]  # what is frozen or generated says so: ``<frozen os>``, ``<string>``


def _number(code: CodeType) -> int:
    name = _name(code)
    if name not in _numbers:
        _numbers[name] = len(_numbers) + 1
        _listed.write(f"{_numbers[name]} {name}\n")
    return _numbers[name]


counted_frames.install(_number)

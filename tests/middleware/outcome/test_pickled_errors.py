"""An error travels from one process to another as it is: a process pool is broken by one that can't be made again there."""

import importlib
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

import oncegate
from oncegate.middleware.calls.errors import CommandFailedError, DuplicateCommandError, ProcessError
from oncegate.middleware.consumers.begun import Recording
from oncegate.middleware.consumers.handlers.handling import NotRecorded
from oncegate.middleware.outcome.errors import NotAccepted
from oncegate.sql import VersionConflict
from oncegate.sql.database.access import DatabaseFailed, DatabaseSilent
from oncegate.sql.projections.runner import _HandlerFailed

MADE: dict[type[BaseException], Callable[[Any], BaseException]] = {
    DuplicateCommandError: lambda kind: kind("again", "abc", {"id": 1}, omitted=False),
    CommandFailedError: lambda kind: kind("ValueError", "broken", "abc"),
    NotAccepted: lambda kind: kind("stream-full", "no room", copied=True),
    VersionConflict: lambda kind: kind(4, 5),
    NotRecorded: lambda kind: kind(Recording.REFUSED, "abc"),
    **dict.fromkeys((DatabaseFailed, DatabaseSilent), lambda kind: kind("sqlite:///shop.db", "is locked")),
    _HandlerFailed: lambda kind: kind([], KeyError("text")),
}


def modules() -> Iterator[Any]:
    for module in pkgutil.walk_packages(oncegate.__path__, "oncegate."):
        if not module.name.startswith("oncegate.app"):  # its errors never leave their process
            yield importlib.import_module(module.name)


def errors() -> list[type[BaseException]]:
    found = {
        kind: None
        for module in modules()
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, BaseException) and kind.__module__ == module.__name__
    }
    return list(found)


def made(kind: type[BaseException]) -> BaseException:
    if kind in MADE:
        return MADE[kind](kind)
    return kind("text", "abc") if issubclass(kind, ProcessError) else kind("text")


@pytest.mark.parametrize("kind", errors(), ids=lambda kind: str(kind.__name__))
@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
def test_each_error_comes_out_of_pickle_as_it_went_in(kind: type[BaseException], protocol: int) -> None:
    error = made(kind)
    error.add_note("seen")
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is kind
    assert str(again) == str(error)
    assert repr(again.args) == repr(error.args)  # by what they show: an error among them equals itself alone
    if hasattr(again, "__dict__"):  # of a compiled class nothing but its text travels
        assert repr(vars(again)) == repr(vars(error))


def raised() -> None:
    raise DuplicateCommandError("again", "abc", {"id": 1}, omitted=False)


def test_process_pool_outlives_an_error() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        for _ in range(2):
            with pytest.raises(DuplicateCommandError) as caught:
                pool.submit(raised).result()
            assert caught.value.original_result == {"id": 1}

"""Does what it is asked for, on whichever build it finds: what the tests here run once on each.

``python -m tests.builds.driver MODULE`` reads a pickled list of (function, arguments) from standard input, calls the
functions of ``tests.builds.MODULE``, and writes what each of them gave or raised as a JSON list of texts, the file of the
build first.
"""

import asyncio
import inspect
import json
import logging
import pickle
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from oncegate.middleware.admission import admission

_UNTOLD = (TypeError, AttributeError)
"""Where what is given is of no type that was asked for, the interpreter's words are its own business."""


def told(call: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """What came of a call, in words."""
    try:
        given = call(*arguments)
        return repr(asyncio.run(given) if inspect.iscoroutine(given) else given)
    except _UNTOLD:
        return "it was of a wrong type"
    except Exception as error:
        return f"{type(error).__module__}.{type(error).__qualname__}: {error}"


def main() -> None:
    """See above."""
    logging.disable()
    calls = import_module(f"tests.builds.{sys.argv[1]}")
    asked: list[tuple[str, tuple[Any, ...]]] = pickle.load(sys.stdin.buffer)
    json.dump([admission.__file__, *[told(getattr(calls, name), arguments) for name, arguments in asked]], sys.stdout)


if __name__ == "__main__":
    main()

"""Makes calls on whichever build it finds: what the tests here do once on each.

``python -m tests.builds.driver`` reads a pickled module and list of (function, arguments) from standard input, again and again,
calls the functions of ``tests.builds.MODULE``, and writes what each of them returned or raised as a JSON list of texts in a line,
the file of the build first.
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

_OF_THE_INTERPRETER = (TypeError, AttributeError)
"""Where an argument is of no type that was declared, the words are the interpreter's own business."""


def outcome(call: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """What came of a call, in words."""
    try:
        given = call(*arguments)
        return repr(asyncio.run(given) if inspect.iscoroutine(given) else given)
    except _OF_THE_INTERPRETER:
        return "it was of a wrong type"
    except Exception as error:
        return f"{type(error).__module__}.{type(error).__qualname__}: {error}"


def main() -> None:
    """See above."""
    logging.disable()
    while True:
        try:
            module, calls = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        functions = import_module(f"tests.builds.{module}")
        outcomes = [outcome(getattr(functions, name), arguments) for name, arguments in calls]
        sys.stdout.write(f"{json.dumps([admission.__file__, *outcomes])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

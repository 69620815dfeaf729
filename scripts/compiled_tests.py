"""Prints the test files that say something about compiled modules which their run from source doesn't.

Those are

- all of tests/builds, which compares both builds;
- the tests of each room in which a module is compiled, but for files whose subject is the gateway as a process, the command line,
  or what several Redis servers do together: to these it is the same what is compiled;
- for each door one file in which all that is behind it works together; for a submission's processes one test,
  since the compiled modules on its way have files among these, and those of `oncegate worker` alone are not compiled.

A test of a fault that only the compiled build has stands in one of them.
"""

import re

from scripts.build_backend import ROOT, marked_modules

DOORS = (
    "tests/system/test_duplicates.py",  # the gateway, as processes
    "tests/worker/test_gateway.py::test_what_was_accepted_and_never_processed_is_processed_the_first_time",
    "tests/middleware/calls/test_idempotent.py",
    "tests/middleware/calls/test_process.py",
    "tests/middleware/consumers/test_handlers.py",
)
OF_PROCESSES = re.compile(r"^from testing\.(?:command_line|gateway|groups)\b", re.M)
"""The import of a file whose subject they are."""


def files() -> list[str]:
    """The files, and tests of files, as pytest takes them below the root."""
    rooms = {name.rpartition("/")[0] for name in marked_modules()}
    own = [path for room in rooms for path in (ROOT / "tests" / room).glob("test_*.py")]
    chosen = {str(path.relative_to(ROOT)) for path in own if not OF_PROCESSES.search(path.read_text("utf-8"))}
    return ["tests/builds", *sorted(chosen | set(DOORS))]


if __name__ == "__main__":
    print("\n".join(files()))

"""Consumer processes that somebody kills, and that a supervisor starts anew."""

import random
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from testing.template import GATEWAY, Forked

_ENDS_WITHIN = 30.0


class Restarting:
    """A process for each of ``commands``: what stands behind ``python``. `mend` replaces those that have ended by themselves;
    ``log`` gets what they write. They are forked from one that has imported ``preloaded``, since many are needed.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        environment: Mapping[str, str],
        log: Path,
        seed: int,
        preloaded: tuple[str, ...] = GATEWAY,
    ) -> None:
        self.kills = 0
        self.deaths = 0
        """How many have ended by a SIGKILL that was not ours."""
        self._commands = commands
        self._environment = dict(environment)
        self._preloaded = preloaded
        self._chance = random.Random(seed)
        self._path = log
        self._log = log.open("ab")
        self._running = [self._start(number) for number in range(len(commands))]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """As `end`. Where an error is the reason, what they wrote last goes to standard error."""
        self.end()
        if error is not None:
            sys.stderr.write(self._path.read_text(errors="replace")[-3000:])

    def _start(self, number: int) -> "subprocess.Popen[bytes]":
        return Forked(
            *self._commands[number],
            preloaded=self._preloaded,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    def mend(self) -> None:
        """Start anew what has ended by itself."""
        for number, process in enumerate(self._running):
            if process.poll() is not None:
                self.deaths += process.returncode == -signal.SIGKILL
                self._running[number] = self._start(number)

    def shoot(self) -> None:
        """Kill one of them, and start another."""
        self.mend()
        number = self._chance.randrange(len(self._running))
        process = self._running[number]
        process.kill()
        process.wait()
        self.kills += 1
        self._running[number] = self._start(number)

    def end(self) -> None:
        """Let them stop; those that don't are killed."""
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(_ENDS_WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._log.close()

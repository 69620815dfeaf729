"""`oncegate serve` as a process: started with settings, awaited, stalled, killed, terminated; its log is kept."""

import json
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import httpx

from testing.template import Forked

DEADLINE = 60.0
"""Seconds for anything that must happen at all; a machine would have to be very slow to need them."""
_COMMAND = ["-c", "from oncegate.app.cli.main import main; main()", "serve"]
_LISTENING = re.compile(r"listening on (https?://[0-9.:]+)")


class Gateway:
    """A gateway process, started at once, to be awaited with `ready` and ended with `end`. ``settings`` as in the TOML file.

    A port of 0 is asked for, unless one is given, and the one that it got is read from its log. Settings go into the environment,
    as JSON. Its process group is its own, so that its workers can be ended with it. ``replace``: in the place of one on ``port``.
    """

    def __init__(
        self,
        log: Path,
        upstream: str,
        cache: str = "memory://",
        *,
        workers: int = 1,
        port: int = 0,
        replace: bool = False,
        routes: list[dict[str, Any]] | None = None,
        idempotency: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.log = log
        self.url = ""
        arguments = ["--upstream", upstream, "--cache", cache, "--port", str(port), "--workers", str(workers)]
        arguments += ["--replace"] if replace else []
        environment = {name: value for name, value in os.environ.items() if not name.upper().startswith("ONCEGATE_")}
        environment["RUNTIME_DIRECTORY"] = str(log.parent)  # where gateways on one port find each other
        settings = {"namespace": "system", "log_level": "debug", **settings, "routes": routes or []}
        settings |= {f"idempotency__{name}": value for name, value in (idempotency or {}).items()}
        for name, value in settings.items():
            environment[f"ONCEGATE_{name.upper()}"] = value if isinstance(value, str) else json.dumps(value)
        with log.open("wb") as stderr:
            self._process = Forked(
                *_COMMAND, *arguments, stdin=subprocess.DEVNULL, stderr=stderr, env=environment, start_new_session=True
            )

    def ready(self) -> Self:
        """Returns once the gateway answers. Several can be started first, and awaited together."""
        until = time.monotonic() + DEADLINE
        while True:
            listening = _LISTENING.search(self.text())
            if listening is not None:
                self.url = listening[1]
                assert httpx.get(f"{self.url}/_oncegate/healthz", timeout=DEADLINE, verify=False).status_code == 200
                return self
            assert self._process.poll() is None, f"the gateway ended at once:\n{self.text()}"
            assert time.monotonic() < until, f"the gateway did not start:\n{self.text()}"
            time.sleep(0.02)

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.partition("://")[2].partition(":")
        return host, int(port)

    @property
    def pid(self) -> int:
        return self._process.pid

    def text(self) -> str:
        """What it has logged so far, as whole lines: one may just be being written."""
        written = self.log.read_bytes()
        return written[: written.rfind(b"\n") + 1].decode()

    def stall(self) -> None:
        """Stops the process in its tracks (SIGSTOP)."""
        self._process.send_signal(signal.SIGSTOP)
        until = time.monotonic() + DEADLINE
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < until
            time.sleep(0.005)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: no chance to tell anybody anything."""
        self._process.kill()
        self._process.wait(DEADLINE)

    def kill_workers(self) -> None:
        """SIGKILL for each worker; the process that watches over them lives on."""
        for child in self.workers():
            os.kill(child, signal.SIGKILL)

    def workers(self) -> list[int]:
        """The process ids of its workers."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        assert children, "it has no workers"
        return [int(child) for child in children]

    def terminate(self) -> None:
        self._process.terminate()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def exit_code(self) -> int:
        """Waits for the end."""
        return self._process.wait(DEADLINE)

    def end(self) -> None:
        """Ends the process group at once, stalled or not."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()  # which may have no group of its own yet
        self._process.wait(DEADLINE)

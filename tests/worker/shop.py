"""A stream, its workers and the file of effects, for one test each: submit, start, kill, look, wait."""

import json
import os
import re
import signal
import subprocess
from itertools import count
from pathlib import Path
from typing import Any, Self

import redis

from oncegate.cache.codec import decode, encode
from oncegate.cache.record import Record, StoredResponse
from oncegate.cache.redis.streams.stream import Command, dead_letters_key, stream_key
from oncegate.middleware.rules.keys.key import execution_key, fingerprint, record_id, record_key
from testing.command_line import ENVIRONMENT, invoke
from testing.template import ROOT, Forked
from testing.waiting import wait_until

DEADLINE = 60.0
"""Seconds for anything that must happen at all."""
LEASE = 1.5
"""Short, since tests wait for it to lapse; too short for those in which it must not, on a machine that stands still."""
LASTING = {"idempotency__lease": 6.0}
"""The settings of workers one of which must not lose its lease for a stall of three seconds."""


class WorkerProcess:
    """A worker that was started, or a gateway; its log is kept."""

    def __init__(self, environment: dict[str, str], log: Path, what: str = "worker") -> None:
        self.log = log
        with log.open("ab") as out:
            self._process = Forked(
                *("-m", "tests.worker.mortal", what),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=ROOT,
                env=ENVIRONMENT | environment,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def text(self) -> str:
        return self.log.read_text("utf-8") if self.log.exists() else ""

    def reads(self) -> Self:
        wait_until(lambda: "reads stream" in self.text() or self.ended(), f"the worker starts:\n{self.text()}")
        return self

    def logs(self, text: str, times: int = 1) -> Self:
        wait_until(lambda: self.text().count(text) >= times or self.ended(), f"{text!r} in the log of {self.log}")
        assert self.text().count(text) >= times, self.text()
        return self

    def ended(self) -> bool:
        return self._process.poll() is not None

    def code(self) -> int:
        """Its exit code, once it has ended; below 0: the signal."""
        wait_until(self.ended, f"the worker ends:\n{self.text()}")
        return self._process.wait()

    def dies(self) -> None:
        """Waits for it to be killed by itself, at the point it was told."""
        assert self.code() == -signal.SIGKILL, self.text()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.code()

    def signal(self, number: int) -> None:
        if not self.ended():
            os.kill(self.pid, number)

    def stall(self) -> None:
        """Stops it in its tracks."""
        self.signal(signal.SIGSTOP)
        wait_until(
            lambda: Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "it is stopped"
        )

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.code()


class Shop:
    """What a test needs, on the Redis at ``url``; ``folder`` is its own. `close` kills what it has started."""

    _numbers = count(1)

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.namespace = f"shop-{os.getpid()}-{next(self._numbers)}"
        self.redis = redis.Redis.from_url(url)
        self.stream = stream_key(self.namespace, "commands")
        self.dead = dead_letters_key(self.namespace, "commands")
        self.effects_file = folder / "effects"
        self.gate = folder / "gate"
        self._processes: list[WorkerProcess] = []

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        self.redis.close()

    # -- doing --------------------------------------------------------------------------------------------------------

    def start(
        self,
        handler: str = "book",
        *,
        dies_at: str = "",
        constants: dict[str, float] | None = None,
        forward: str = "",
        settings: dict[str, Any] | None = None,
        retry_base: float = 0.05,
        retry_cap: float = 300.0,
        **worker: Any,
    ) -> WorkerProcess:
        """Start a worker. ``worker`` are settings of its table, ``settings`` others; ``constants`` are of modules in app/, and
        ``retry_base`` and ``retry_cap`` two of them.
        """
        pauses = {"work.RETRY_BASE": retry_base, "work.RETRY_CAP": retry_cap}
        executor = {"forward": forward} if forward else {"handler": f"tests.worker.handlers:{handler}"}
        tables = {f"worker__{name}": value for name, value in {**executor, **worker}.items()}
        others = {"DIES_AT": dies_at, "CONSTANTS": json.dumps(pauses | (constants or {}))}
        return self.start_process("worker", tables | (settings or {}), others)

    def work(self, handler: str = "book", **options: Any) -> WorkerProcess:
        """Start a worker, and wait until everything is acknowledged."""
        worker = self.start(handler, **options)
        self.done(options.get("consumer", "commands"))
        return worker

    def serve(
        self,
        routes: list[dict[str, Any]],
        *,
        dies_at: str = "",
        upstream: str = "",
        settings: dict[str, Any] | None = None,
    ) -> tuple[WorkerProcess, str]:
        """Start a gateway; its URL too, once it listens. With an ``upstream`` it is another service's."""
        settings = (settings or {}) | {"routes": routes, "port": 0, "upstream": upstream or "http://127.0.0.1:9"}
        if not dies_at:  # nobody waits for its lease, nor for Redis
            settings |= {"idempotency__lease": 30, "cache_timeout": 10}
        if upstream:
            settings["namespace"] = f"{self.namespace}-service"
        gateway = self.start_process("gateway", settings, {"DIES_AT": dies_at})
        listening = re.compile(r"listening on (http://[0-9.:]+)")
        wait_until(lambda: listening.search(gateway.text()) or gateway.ended(), "it listens")
        found = listening.search(gateway.text())
        assert found, gateway.text()
        return gateway, found[1]

    def start_process(self, what: str, settings: dict[str, Any], others: dict[str, str]) -> WorkerProcess:
        """Start a ``worker`` or a ``gateway``. ``others`` are variables that are no settings."""
        common = {"cache": self.url, "namespace": self.namespace, "log_level": "debug", "idempotency__lease": LEASE}
        environment = {
            f"ONCEGATE_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
            for name, value in (common | settings).items()
        }
        environment |= {"EFFECTS": str(self.effects_file), "BOOKS": str(self.folder / "books.sqlite"), **others}
        log = self.folder / f"{what}-{len(self._processes)}.log"
        self._processes.append(WorkerProcess(environment, log, what))
        return self._processes[-1]

    def submit(self, key: str, payload: dict[str, Any] | bytes | None = None, **fields: Any) -> bytes:
        """Append a command as the gateway does; the entry's id."""
        command = self.command(key, payload, **fields)
        entry: Any = self.redis.xadd(self.stream, command.fields())  # type: ignore[arg-type]  # a dict of bytes is one of those
        assert isinstance(entry, bytes)
        return entry

    def accept(self, key: str, payload: dict[str, Any] | bytes | None = None, *, ttl_ms: int = 60_000) -> bytes:
        """Append a command, and keep the record of its submission for ``ttl_ms``."""
        accepted = self.command(key, payload).record(StoredResponse(202, (), b"{}", 1))
        self.redis.set(self.key(key), encode(accepted), px=ttl_ms)
        return self.submit(key, payload)

    def command(self, key: str, payload: dict[str, Any] | bytes | None = None, **fields: Any) -> Command:
        body = payload if isinstance(payload, bytes) else json.dumps(payload or {}).encode()
        target = fields.pop("target", "/bookings")
        return Command(
            command=record_id(self.key(key)),
            key=key,
            fingerprint=fingerprint("POST", target.encode(), b"", body),
            method="POST",
            target=target,
            route="*",
            body=body,
            **{"content_type": "application/json", **fields},
        )

    # -- looking ------------------------------------------------------------------------------------------------------

    def effects(self, key: str) -> int:
        """How often the command has had its effect."""
        return sum(line.split()[0] == key for line in self.effect_lines())

    def effect_lines(self) -> list[str]:
        return self.effects_file.read_text().splitlines() if self.effects_file.exists() else []

    def record(self, key: str, consumer: str = "commands") -> Record:
        """The execution record."""
        found = self._held(self.place(key, consumer))
        assert found
        return found

    def response(self, key: str) -> StoredResponse:
        """The execution's result, or its error."""
        response = self.record(key).response
        assert response
        return response

    def submission(self, key: str) -> Record:
        """The record of the submission, by the caller without a name."""
        found = self._held(self.key(key))
        assert found
        return found

    def _held(self, name: str) -> Record | None:
        pipe: Any = self.redis.pipeline()
        data, left = pipe.get(name).pttl(name).execute()
        return None if data is None else decode(data, left)

    def state(self, key: str, consumer: str = "commands") -> str:
        found = self._held(self.place(key, consumer))
        return found.state.value if found else "absent"

    def pending(self, consumer: str = "commands") -> int:
        summary: Any = self.redis.xpending(self.stream, consumer)
        return int(summary["pending"])

    def all_done(self, consumer: str = "commands") -> bool:
        """Whether everything was delivered and acknowledged."""
        if not self.redis.exists(self.stream):
            return False
        groups: Any = self.redis.xinfo_groups(self.stream)
        last: Any = self.redis.xinfo_stream(self.stream)["last-generated-id"]
        return any(
            group["name"] == consumer.encode() and group["last-delivered-id"] == last and group["pending"] == 0
            for group in groups
        )

    def letters(self) -> list[dict[str, str]]:
        """The dead letters, as text."""
        entries: Any = self.redis.xrange(self.dead)
        return [{name.decode(): value.decode("latin-1") for name, value in fields.items()} for _, fields in entries]

    def key(self, key: str) -> str:
        """Where the record of the submission is."""
        return record_key(self.namespace, key, None)

    def place(self, key: str, consumer: str = "commands") -> str:
        """Where the execution record is."""
        return execution_key(self.key(key), consumer)

    def operate(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """``oncegate commands``, on what is here."""
        where = ["--cache", self.url, "--namespace", self.namespace]
        return invoke("commands", *arguments, *where, ONCEGATE_CACHE_TIMEOUT="10", **environment)

    # -- waiting ------------------------------------------------------------------------------------------------------

    def done(self, consumer: str = "commands") -> None:
        """Waits until everything is acknowledged."""
        wait_until(lambda: self.all_done(consumer), "all is acknowledged")

    def becomes(self, key: str, state: str, consumer: str = "commands") -> None:
        wait_until(lambda: self.state(key, consumer) == state, f"{key} becomes {state}")


def at_gate(shop: Shop, **more: Any) -> dict[str, Any]:
    return {"do": "wait", "gate": str(shop.gate), **more}


def waiting(shop: Shop) -> int:
    """How many workers have a command that waits at the gate."""
    return len(list(shop.folder.glob("gate.*")))

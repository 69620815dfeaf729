"""`scripts/bench instructions`: instructions in user space per request, counted by callgrind, from source and compiled.

Seconds on a small machine vary by a tenth, instructions by less than a hundredth: so a change of a hundredth can be seen, and
be refused. What they leave out: the kernel, the processor's caches, and the garbage collector's rare long runs.

`CONNECTIONS` connections go in lockstep: each sends one request, then all answers are read. With ``--against`` another checkout
of the project is counted in the same way, in the same run, and the table has the ratios. ``--with`` counts the gateway with
one of `OPTIONS` set, too, and the table has the ratios to what it takes without.
"""

import base64
import contextlib
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, product
from pathlib import Path

import httpx
import orjson

from loadtests import builds, machine, processes
from loadtests.middleware import ORDER
from loadtests.processes import ROOT, BenchError, Process
from loadtests.report import Results, Table, progress, spread

CONNECTIONS = 16
ROUNDS = 60
"""Of each kind of request, behind half as many that warm up."""
PATIENCE = "10"
"""Seconds for Redis: under valgrind all takes fifty times as long. (A lease is three times as long at least.)"""
READY_WITHIN = 300.0
MODES = {
    "gateway": ("GET that passes", "POST without a key", "first request", "replay"),
    "app": ("no key", "first request", "replay"),
}
OPTIONS = ("secret", "jwt", "encryption", "shadow", "access_log", "tracing", "sampling")
"""What a gateway may be asked to do besides; ``jwt``: its callers are known by a token's claims, of an elliptic key; ``shadow``:
it enforces nothing, and observes all; ``access_log``: a line in JSON for each request, into a file; ``tracing``: the spans of all
requests are made and sent, ``sampling``: of one in a hundred."""
CREDENTIAL = "0123456789abcdef"


@dataclass(frozen=True)
class Checkout:
    """One checkout of the project on one of the builds. ``label`` says which in results."""

    label: str
    root: Path
    build: str
    path: Path | None
    option: str = ""
    """One of `OPTIONS`, where it is set."""
    environment: Path | None = None
    """Where it is installed, unless that is the checkout's own environment."""

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return (self.environment or self.root / ".venv") / "bin" / "python"


def run(
    *,
    rounds: int,
    against: Path | None,
    build: str | None,
    door: str | None = None,
    options: Sequence[str] = (),
    quick: bool,
) -> Results:
    """Count it all ``rounds`` times, processes made anew each time. Raises `BenchError` where anything answers wrongly."""
    if options and (against or door == "app"):
        raise BenchError("--with is for the gateway, against itself without")
    valgrind = processes.tool("valgrind")
    requests = _rounds(quick)
    rounds = 1 if quick else rounds
    there = list(checkouts(against, build, quick=quick))
    there += [replace(each, option=option) for each in there for option in options]
    doors = list(MODES) if door is None and not options else [door or "gateway"]
    settings = {
        "quick": quick, "rounds": rounds, "requests": requests * CONNECTIONS, "connections": CONNECTIONS, "doors": doors,
        "options": list(options),
    }  # fmt: skip
    results = Results("instructions", {**settings, "builds": sorted({each.build for each in there})})
    with progress() as bar:
        task = bar.add_task("instructions", total=rounds * len(there) * len(doors))
        for number, each, name in product(range(rounds), there, doors):
            described = ", ".join(filter(None, (name, each.label, each.build, each.option)))
            bar.update(task, description=f"{described}, round {number + 1}")
            for mode, instructions in count_requests(each, name, valgrind, quick=quick):
                results.samples.append(
                    {
                        "checkout": each.label,
                        "build": each.build,
                        "option": each.option,
                        "door": name,
                        "mode": mode,
                        "round": number,
                        "instructions": instructions,
                    }
                )
            bar.advance(task)
    return results


def _rounds(quick: bool) -> int:
    return 4 if quick else ROUNDS


def tables(results: Results) -> list[Table]:
    """Thousands of instructions per request; with another checkout, or an option, the ratio of medians to it."""
    if results.settings.get("options"):
        return [_table_of_options(results)]
    other = any(sample["checkout"] == "against" for sample in results.samples)
    rows = []
    for build in results.settings["builds"]:
        for door in results.settings["doors"]:
            for mode in MODES[door]:
                cell = {"build": build, "door": door, "mode": mode}
                ours = spread(results.select(checkout="this", **cell), "instructions")
                row = [build, door, mode, _thousands(ours.median)]
                if other:
                    theirs = spread(results.select(checkout="against", **cell), "instructions")
                    row += [_thousands(theirs.median), f"{ours.median / theirs.median:.3f}"]
                rows.append(row)
    head = ["build", "door", "request", "thousands"] + (["the other checkout", "ratio"] if other else [])
    return [Table("Instructions in user space per request", head, rows, "Medians of the rounds.")]


def _table_of_options(results: Results) -> Table:
    options = results.settings["options"]
    rows = []
    for build, mode in product(results.settings["builds"], MODES["gateway"]):
        without, *found = [
            spread(results.select(build=build, mode=mode, option=option), "instructions").median
            for option in ("", *options)
        ]
        rows.append([build, mode, _thousands(without), *(f"{each / without:.3f}" for each in found)])
    head = ["build", "request", "thousands, without", *(f"with {option}" for option in options)]
    return Table("Instructions in user space per request at the gateway", head, rows, "Ratios to the same without.")


def _thousands(instructions: float) -> str:
    return f"{instructions / 1000:,.1f}"


def checkouts(against: Path | None, build: str | None, *, quick: bool) -> Iterator[Checkout]:
    """What is measured: each build of these sources, and of those in the folder ``against``."""
    for label, root in (("this", ROOT), *([("against", against.resolve())] if against else [])):
        if build != builds.COMPILED:
            yield Checkout(label, root, builds.SOURCE, None)
        if build != builds.SOURCE and not quick:
            path = builds.chosen(build, quick=quick, script=root / "scripts" / "compile")
            if path is not None:
                yield Checkout(label, root, builds.COMPILED, path)


def count_requests(checkout: Checkout, door: str, valgrind: str, *, quick: bool) -> Iterator[tuple[str, float]]:
    """The instructions of one request of each kind, by a server of its own. Raises `BenchError` where it answers wrongly."""
    rounds = _rounds(quick)
    with serving(checkout, door, valgrind) as (server, clients):
        numbers = count()
        control(valgrind, "-i", "on", server)
        for mode in MODES[door]:
            in_lockstep(clients, mode, max(2, rounds // 2), numbers)
            control(valgrind, "-z", None, server)
            in_lockstep(clients, mode, rounds, numbers)
            yield mode, counted(valgrind, server) / (rounds * CONNECTIONS)


@contextlib.contextmanager
def serving(
    checkout: Checkout,
    door: str,
    valgrind: str,
    *,
    callgrind: Sequence[str] = (),
    variables: Mapping[str, str] = {},
    modules: Path | None = None,
) -> "Iterator[tuple[Process, list[Client]]]":
    """A server under callgrind, which doesn't count yet, with Redis and an upstream; and its clients.

    ``callgrind`` are more options of callgrind's, ``variables`` of the environment; ``modules`` is a folder to import from.
    """
    core = ",".join(map(str, machine.cores()))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncegate-bench-")))
        redis = stack.enter_context(processes.redis_server(folder, core))
        url = f"redis://127.0.0.1:{redis.port}/0"
        port = processes.free_port()
        python = str(checkout.python)
        upstream_url = ""
        if door != "app":
            upstream = processes.nginx("upstream.conf", core=core, folder=folder, upstream_port=processes.free_port())
            stack.enter_context(upstream)
            upstream_url = upstream.url
        if door == "gateway":
            script = str(checkout.python.parent / "oncegate")
            command = [python, script, "serve", "--upstream", upstream_url, "--cache", url, "--port", str(port)]
        elif door == "floor":
            ports = [str(each) for each in (port, upstream.port, redis.port)]
            command = [python, "-m", "loadtests.floor", *ports]
        else:
            command = [python, "-m", "loadtests.app", "oncegate", str(port), url, "patient"]
        settings, credential = given(checkout.option, folder, collector=upstream_url)
        environment = {"PYTHONHASHSEED": "0", "ONCEGATE_CACHE_TIMEOUT": PATIENCE, **settings, **variables}
        paths = [str(path) for path in (modules, checkout.path) if path is not None]
        if paths:
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        under = [
            f"{valgrind}/valgrind",
            "--tool=callgrind",
            "--instr-atstart=no",
            f"--callgrind-out-file={folder}/callgrind.out",
            *callgrind,
        ]
        server = Process(
            f"{door}-{checkout.label}",
            [*under, *command],
            port=port,
            core=core,
            folder=folder,
            environment=environment,
            ready_within=READY_WITHIN,
            working_folder=checkout.root,
        )
        stack.enter_context(server)
        if door != "floor":
            builds.verify(server, compiled=checkout.build == builds.COMPILED)
        if door == "gateway":  # what operators use is loaded behind the start: not within what is counted
            httpx.get(f"{server.url}/_oncegate/openapi.json", timeout=READY_WITHIN)
        yield server, [stack.enter_context(Client(port, credential)) for _ in range(CONNECTIONS)]


def given(option: str, folder: Path, collector: str = "") -> tuple[dict[str, str], str]:
    """The settings for one of `OPTIONS`, and what clients bring for a credential. ``collector`` takes spans."""
    if option in ("tracing", "sampling"):
        share = "1" if option == "tracing" else "0.01"
        sampler = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": share}
        return {"ONCEGATE_TRACING": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": collector, **sampler}, CREDENTIAL
    if option == "secret":
        return {"ONCEGATE_SECRET": os.urandom(32).hex()}, CREDENTIAL
    if option == "shadow":
        return {"ONCEGATE_IDEMPOTENCY__ENFORCE": "0", "ONCEGATE_IDEMPOTENCY__SHADOW": "true"}, CREDENTIAL
    if option == "encryption":
        key = base64.b64encode(os.urandom(32)).decode()
        return {"ONCEGATE_ENCRYPTION_KEYS": orjson.dumps([f"bench:{key}"]).decode()}, CREDENTIAL
    if option == "access_log":
        return {"ONCEGATE_ACCESS_LOG": "json", "ONCEGATE_ACCESS_LOG_FILE": str(folder / "access.log")}, CREDENTIAL
    if option == "jwt":
        from testing.issuer import AUDIENCE, ISSUER, Issuer  # PyJWT and cryptography, which nothing else here needs

        issuer = Issuer()
        verified = {"jwks": issuer.write(folder / "jwks.json"), "issuer": ISSUER, "audience": [AUDIENCE]}
        scope = {
            "ONCEGATE_IDEMPOTENCY__SCOPE": '["jwt:iss", "jwt:sub"]',
            "ONCEGATE_JWT": orjson.dumps(verified).decode(),
        }
        return scope, issuer.token(exp=int(time.time()) + 86400)
    return {}, CREDENTIAL


def control(valgrind: str, flag: str, value: str | None, server: Process | subprocess.Popen[str]) -> str:
    """What callgrind answers. Raises `BenchError` where it doesn't."""
    command = [f"{valgrind}/callgrind_control", flag, *([value] if value else []), str(server.pid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=READY_WITHIN)
    if done.returncode or "Error" in done.stdout:
        raise BenchError(f"callgrind can't be controlled: {(done.stdout + done.stderr).strip().splitlines()[-1]}")
    return done.stdout


def counted(valgrind: str, server: Process) -> int:
    """Instructions since the counters were set to 0, in all threads."""
    threads = re.findall(r"^ *Th *[0-9]+ +([0-9,]+)", control(valgrind, "-e", None, server), re.MULTILINE)
    if not threads:
        raise BenchError("callgrind does not say how many instructions there were")
    return sum(int(found.replace(",", "")) for found in threads)


def in_lockstep(clients: "list[Client]", mode: str, rounds: int, numbers: "count[int]") -> None:
    """``rounds`` requests of each client: all are sent, then all answers are read."""
    for _ in range(rounds):
        for client in clients:
            client.send(mode, next(numbers))
        for client in clients:
            client.receive()


class Client:
    """One kept connection."""

    def __init__(self, port: int, credential: str) -> None:
        self._credential = credential
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=READY_WITHIN)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._replay = os.urandom(8).hex()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, mode: str, number: int) -> None:
        """One request of a kind."""
        key = self._replay if mode == "replay" else f"first-{number}-{self._replay}"
        self._socket.sendall(_request(mode, key, self._credential))

    def receive(self) -> None:
        """Its whole answer. Raises `BenchError` unless it is a success."""
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._some()
        head, _, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"\r\ncontent-length: *([0-9]+)", head, re.IGNORECASE)
        if head[9:10] != b"2" or length is None:
            raise BenchError(f"an answer is {head[:40]!r}")
        left = int(length[1]) - len(body)
        while left > 0:
            left -= len(self._some())

    def _some(self) -> bytes:
        data = self._socket.recv(65536)
        if not data:
            raise BenchError("the server closed a connection")
        return data


def _request(mode: str, key: str, credential: str = CREDENTIAL) -> bytes:
    body = orjson.dumps(ORDER)
    lines = ["Host: 127.0.0.1", "User-Agent: bench", "Accept: */*", f"Authorization: Bearer {credential}"]
    if mode == "GET that passes":
        return "\r\n".join(["GET /payments HTTP/1.1", *lines, "", ""]).encode()
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    if mode in ("first request", "replay", "submission"):
        lines.append(f"Idempotency-Key: {key}")
    if mode == "submission":
        lines.append("Prefer: respond-async")
    return "\r\n".join(["POST /payments HTTP/1.1", *lines, "", ""]).encode() + body

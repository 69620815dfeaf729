"""`scripts/bench console`: what the console costs, beside a million records and a hundred thousand dead letters on Redis.

Each page's first byte, and how long it holds the event loop (`loadtests.pinging`); clients' p99 with a page that is loaded again
each second, against nobody's looking; and how much the wheel grows.
"""

import contextlib
import http.client
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import redis

from loadtests import builds, machine, processes
from loadtests.load import QUICK_SECONDS, Target, Wrk
from loadtests.processes import BenchError, Process
from loadtests.report import Results, progress
from oncegate.app.settings.admin_tokens import AdminToken
from oncegate.cache.redis.streams.letter import Death
from oncegate.cache.redis.streams.stream import Command, dead_letters_key
from testing.wheelhouse import copy_checkout

CONNECTIONS: Final = 32
UNKNOWN: Final = 200
ERRORS: Final = ("the bank does not answer", "no account {}", "the currency {} is unknown", "limit {} reached")
RARE: Final = "seen once"
PARTS: Final = ("oncegate/app/operators/console/", "oncegate/app/demo/")
OPEN: Final = ("Overview", "Records", "Commands")
"""The pages that are left open beside clients."""
_TOKEN: Final = "a-token-of-the-benchmark"
_CONSOLE: Final = "/_oncegate/console"
_COOKIE: Final = re.compile(r"(oncegate-session=[^;]+)")
_LINK: Final = re.compile(r'<a href="([^"]+)"[^>]*>(.*?)</a>', re.DOTALL)
_AT_ONCE: Final = 1000


class Visitor:
    """Who is logged in at the console of the gateway on ``port``."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._cookie = ""
        page = self.load("", status=401)
        form = re.search(r'name="form" value="([0-9a-f]{64})"', page)
        if form is None:
            raise BenchError("the console has no log-in")
        self._post("/log-in", form=form[1], token=_TOKEN)

    def close(self) -> None:
        """Leave, without a log-out."""
        self._connection.close()

    def load(self, path: str, status: int = 200) -> str:
        """The page at a path below the console's. Raises `BenchError` for another ``status``."""
        return self.timed(path, status)[1]

    def timed(self, path: str, status: int = 200) -> tuple[float, str]:
        """The milliseconds until its first byte, and the page."""
        begun = time.perf_counter()
        self._connection.request("GET", _CONSOLE + path, headers={"cookie": self._cookie})
        answer = self._connection.getresponse()
        taken = (time.perf_counter() - begun) * 1000
        return taken, self._page(answer, path, status)

    def links(self, path: str) -> dict[str, str]:
        """The links of a page to others of the console, by their words: paths below the console's."""
        found = _LINK.findall(self.load(path))
        inner = [(unescape(re.sub("<[^>]*>", "", words)).strip(), unescape(url)) for url, words in found]
        return {words: url.removeprefix(_CONSOLE) for words, url in inner if url.startswith(_CONSOLE)}

    def _post(self, path: str, **form: str) -> None:
        headers = {"cookie": self._cookie, "content-type": "application/x-www-form-urlencoded"}
        self._connection.request("POST", _CONSOLE + path, urlencode(form), headers)
        self._page(self._connection.getresponse(), path, 303)

    def _page(self, answer: http.client.HTTPResponse, path: str, status: int) -> str:
        page = answer.read().decode()
        if answer.status != status:
            raise BenchError(f"{path or '/'}: {answer.status} instead of {status}")
        for cookie in _COOKIE.findall(answer.headers.get("set-cookie") or ""):
            self._cookie = cookie
        return page


def run(*, rounds: int, seconds: float, records: int, letters: int, build: str | None = None, quick: bool) -> Results:
    """Measure it all, of one build. Raises `BenchError` where a page, or a client's answer, is wrong."""
    compiled = builds.chosen(build, quick=quick)
    if quick:
        rounds, seconds, records, letters = 1, QUICK_SECONDS, 1000, 200
    settings = {
        "builds": [builds.COMPILED if compiled else builds.SOURCE], "quick": quick, "rounds": rounds, "seconds": seconds,
        "records": records, "letters": letters, "connections": CONNECTIONS,
    }  # fmt: skip
    results = Results("console", settings)
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(progress())
        target, gateway, load_core = stack.enter_context(_running(compiled, patient=quick))
        task = bar.add_task("console", total=2 + 2 * rounds)
        bar.update(task, description=f"{records:,} records, {letters:,} dead letters")
        wrk = Wrk(load_core, warm_up=0)
        with processes.redis_client(target.redis) as client:
            fill(wrk, target, client, records, letters)
        visitor = stack.enter_context(contextlib.closing(Visitor(gateway.port)))
        pages = paths(visitor)
        bar.advance(task)
        with _pinging(gateway, load_core) as hold:
            for number in range(rounds + 1):  # the first one warms up
                bar.update(task, description=f"pages, round {number}")
                for name, path in random.sample(list(pages.items()), len(pages)):
                    taken, page = visitor.timed(path)
                    held = hold(lambda path=path: visitor.load(path))  # type: ignore[misc]  # bound in the loop
                    sample = {"part": "page", "page": name, "first_byte_ms": taken, "hold_ms": held}
                    results.samples += [{**sample, "round": number, "bytes": len(page)}] if number or quick else []
                bar.advance(task)
        for number in range(rounds):
            for name in random.sample(["", *OPEN], 1 + len(OPEN)):
                bar.update(task, description=f"clients beside {name or 'nobody'}, round {number + 1}")
                with _looking(gateway.port, pages[name] if name else None) as loads:
                    sample = wrk.run(target, "first", f"{name}{number}", connections=CONNECTIONS, seconds=seconds)
                results.samples.append(
                    {"part": "clients", "page": name, "round": number, **sample, "loads": len(loads)}
                )
            bar.advance(task)
    results.checks["wheel"] = wheel()
    return results


def paths(visitor: Visitor) -> dict[str, str]:
    """The pages of the menu, and those that they lead to, by name: paths below the console's."""
    menu = re.search(r"<nav.*?</nav>", visitor.load(""), re.DOTALL)
    names = [unescape(words) for _, words in _LINK.findall(menu[0] if menu else "")]
    links = visitor.links("")
    pages = {name: links[name] for name in names}
    errors = [path for path in visitor.links("/commands").values() if path.startswith("/commands/error?")]
    record = next(path for path in visitor.links("/records").values() if path.startswith("/records/"))
    letter = next(path for path in visitor.links(errors[0]).values() if path.startswith("/commands/letter?"))
    caller = record.partition(":")[2]
    return pages | {
        "Records, unknown ones": "/records?state=unknown",
        "Records of one caller": f"/records?caller={caller}",
        "Records of the last minutes": "/records?since=5m",
        "Unknown, of one route": "/unknown?route=/lost",
        "Record": record,
        "Dead letters of the most frequent error": errors[0],
        "Dead letters of the rarest error": errors[-1],
        "Dead letter": letter,
    }


# -- what is looked at ------------------------------------------------------------------------------------------------


def fill(wrk: Wrk, target: Target, client: redis.Redis, records: int, letters: int) -> None:
    """Make ``records`` by first requests, some of unknown outcome, and ``letters``, one of which has an error of its own."""
    with contextlib.closing(http.client.HTTPConnection(target.url.removeprefix("http://"), timeout=60)) as lost:
        for number in range(UNKNOWN):
            lost.request("POST", "/lost", b"{}", {"idempotency-key": f"lost-{number}", "authorization": "Bearer lost"})
            answer = lost.getresponse()
            answer.read()
            if answer.status < 500:
                raise BenchError(f"/lost: {answer.status}")
    until, number = time.monotonic() + 3600, 0
    while int(client.dbsize()) < records:
        if time.monotonic() > until:
            raise BenchError("the records were not made within an hour")
        number += 1
        wrk.run(target, "first", f"fill-{number}", connections=CONNECTIONS, seconds=1 if records < 100_000 else 10)
    stream, now = dead_letters_key("default", "commands"), int(time.time() * 1000)
    for begin in range(0, letters, _AT_ONCE):
        with client.pipeline(transaction=False) as pipe:
            for each in range(begin, min(begin + _AT_ONCE, letters)):
                entry: dict[Any, Any] = dict(_letter(each, each == letters - UNKNOWN, now - letters + each))
                pipe.xadd(stream, entry, id=f"{now - letters + each}-0")
            pipe.execute()


def _letter(number: int, is_rare: bool, at_ms: int) -> dict[bytes, bytes]:
    error = RARE if is_rare else ERRORS[0 if number % 10 else number // 10 % len(ERRORS)].format(number)
    command = Command(
        command=f"{number:020d}:{'c' * 20}",
        key=f"order-{number}",
        fingerprint=b"f" * 16,
        method="POST",
        target="/orders",
        route="/orders",
        body=processes.BODY.encode(),
        content_type="application/json",
        accepted_at_ms=at_ms,
    )
    death = Death("commands", "exhausted", 10, "BankError", error, f"{at_ms}-0", "worker-1/1-abcdef", at_ms)
    return {**command.fields(), **death.fields()}


@contextlib.contextmanager
def _running(compiled: Path | None, *, patient: bool) -> Iterator[tuple[Target, Process, int]]:
    server_core, load_core = machine.cores()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncegate-bench-")))
        store = stack.enter_context(processes.redis_server(folder, load_core))
        upstream = processes.nginx("upstream.conf", core=load_core, folder=folder, upstream_port=processes.free_port())
        stack.enter_context(upstream)
        routes = [
            {"path": "/payments"},
            {"path": "/lost"},
            {"path": "/orders", "mode": "async", "on_missing_key": "reject"},
        ]
        gateway = processes.oncegate(
            upstream.url,
            f"redis://127.0.0.1:{store.port}/0",
            core=server_core,
            folder=folder,
            build=compiled,
            patient=patient,
            routes=json.dumps(routes),
            admin_tokens=json.dumps([AdminToken.of("bench", _TOKEN).setting()]),
        )
        stack.enter_context(gateway)
        builds.verify(gateway, compiled=compiled is not None)
        watched = {"server": gateway, "redis": store, "upstream": upstream}
        yield Target(gateway.url, watched, lambda: 0, store), gateway, load_core


@contextlib.contextmanager
def _pinging(gateway: Process, core: int) -> Iterator[Callable[[Callable[[], object]], float]]:
    """What returns for how long (ms), at the most, a function has the gateway hold its event loop."""
    program = [sys.executable, "-m", "loadtests.pinging", str(gateway.port), "/_oncegate/healthz"]
    command = ["taskset", "--cpu-list", str(core), *program, *map(str, machine.family(gateway.pid))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdin is None or process.stdout is None:
            raise BenchError("no pipes")
        given, printed = process.stdin, process.stdout

        def hold(function: Callable[[], object]) -> float:
            print(file=given, flush=True)
            function()
            print(file=given, flush=True)
            return float(printed.readline())

        try:
            yield hold
        finally:
            process.kill()


@contextlib.contextmanager
def _looking(port: int, path: str | None) -> Iterator[list[float]]:
    """Somebody has the page open, which is loaded again each second; the milliseconds of each load. ``None``: nobody."""
    loads: list[float] = []
    if path is None:
        yield loads
        return
    over = threading.Event()

    def look() -> None:
        with contextlib.closing(Visitor(port)) as visitor:
            while not over.is_set():
                loads.append(visitor.timed(path)[0])
                over.wait(1)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield loads
    finally:
        over.set()
        thread.join()
    if not loads:
        raise BenchError("the page was never there")


def wheel() -> dict[str, int]:
    """The bytes of the wheel, and of the same without the console and the demo."""
    with tempfile.TemporaryDirectory(prefix="oncegate-bench-") as name:
        folder = Path(name)
        copy_checkout(folder / "tree")
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
        done = subprocess.run([*command, folder, folder / "tree"], capture_output=True, text=True)
        if done.returncode:
            raise BenchError(f"the wheel can't be built: {done.stderr.strip().splitlines()[-1]}")
        whole = next(folder.glob("*.whl"))
        with zipfile.ZipFile(whole) as source, zipfile.ZipFile(folder / "less.zip", "w", zipfile.ZIP_DEFLATED) as less:
            for each in source.infolist():
                if not each.filename.startswith(PARTS):
                    less.writestr(each, source.read(each))
        return {"whole": whole.stat().st_size, "without": (folder / "less.zip").stat().st_size}

"""`scripts/bench duplicates`: N requests with one key at once, all with ``Prefer: wait``: one arrives, all get its answer.

And the same without ``Prefer``: one is executed, the others are told 409 at once. Connections are open before the storm; the
upstream takes half a second for the one request.
"""

import asyncio
import itertools
import time
from typing import Any

from loadtests import bed, builds, machine
from loadtests.bed import ONCEGATE
from loadtests.processes import BenchError
from loadtests.report import Results, Table, progress, spread

STORMS = (10, 100, 1000)
WORKERS = (1, 2)
UPSTREAM_SECONDS = 0.5
ENDS_WITHIN = 60


def run(*, rounds: int, quick: bool) -> Results:
    """Storms of each size, ``rounds`` times. Raises `BenchError` where more than one request arrives, or an answer is wrong."""
    if quick:
        rounds = 1
    server_core, load_core = machine.cores()
    storms, workers = (STORMS[:2], WORKERS[:1]) if quick else (STORMS, WORKERS)
    there = builds.measured(builds.compiled(quick=quick))
    settings = {
        "builds": list(there), "quick": quick, "rounds": rounds, "storms": list(storms),
        "upstream_seconds": UPSTREAM_SECONDS,
    }  # fmt: skip
    results = Results("duplicates", settings)
    with progress() as bar:
        task = bar.add_task("duplicates", total=len(there) * rounds * len(storms) * len(workers) * 2)
        for (build, folder), count in itertools.product(there.items(), workers):
            with bed.oncegate(
                str(server_core), str(load_core), workers=count, compiled=folder, patient=quick
            ) as running:
                for number, size, wait in itertools.product(range(rounds), storms, (True, False)):
                    words = f"{size} duplicates, {'Prefer: wait' if wait else 'no Prefer'}, {count} workers, {build}"
                    bar.update(task, description=f"{words}, round {number + 1}")
                    sample = asyncio.run(storm(running, size, wait=wait))
                    of = {"build": build, "workers": count, "wait": wait, "size": size, "round": number}
                    results.samples.append({**of, **sample})
                    bar.advance(task)
    return results


async def storm(running: bed.Bed, size: int, *, wait: bool) -> dict[str, Any]:
    """One storm. What it measures ends with the last byte of the last answer."""
    key = f"storm-{time.monotonic_ns()}"
    prefer = "Prefer: wait=30\r\n" if wait else ""
    head = f"POST /slow HTTP/1.1\r\nHost: 127.0.0.1\r\nIdempotency-Key: {key}\r\n{prefer}Content-Length: 2"
    request = f"{head}\r\n\r\n{{}}".encode()
    port = running.servers[ONCEGATE].port
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(size)]
    before = running.arrivals()
    began = time.monotonic()
    for _, writer in connections:
        writer.write(request)
    try:
        async with asyncio.timeout(ENDS_WITHIN):
            answers = await asyncio.gather(*(_answer(reader) for reader, _ in connections))
    except TimeoutError:
        raise BenchError(f"{size} duplicates: not all were answered within {ENDS_WITHIN} s") from None
    taken = time.monotonic() - began
    for _, writer in connections:
        writer.close()
    arrivals = running.arrivals() - before
    statuses = [status for status, _, _ in answers]
    fine = [body for status, body, _ in answers if status == 200]
    replayed = sum(replayed for _, _, replayed in answers)
    expected = size if wait else 1
    if arrivals != 1 or len(set(fine)) != 1 or len(fine) < expected or (wait and replayed != size - 1):
        raise BenchError(
            f"{size} duplicates: {arrivals} arrivals, {len(fine)} answers of 200, {replayed} marked as replays"
        )
    if not wait and set(statuses) - {200, 409}:
        raise BenchError(f"{size} duplicates: answers of {sorted(set(statuses))}")
    return {"arrivals": arrivals, "answered": len(fine), "refused": statuses.count(409), "seconds": taken}


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    """Status, body, and whether it is marked as a replay."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b"\r\ncontent-length:" in head:
        length = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
    else:
        body = b""
        while (size := int(await reader.readline(), 16)) > 0:
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    return int(head.split(b" ", 2)[1]), body, b"\r\nidempotent-replayed: true" in head


# -- what the samples say ---------------------------------------------------------------------------------------------


def of_build(results: Results, build: str, **wanted: object) -> list[dict[str, Any]]:
    """The samples of a build; those of an older run don't tell theirs, and are from source."""
    return [sample for sample in results.select(**wanted) if sample.get("build", builds.SOURCE) == build]


def tables(results: Results) -> list[Table]:
    """All storms."""
    rows = []
    counts = sorted({sample["workers"] for sample in results.samples})
    for build, workers, wait in itertools.product(builds.of(results), counts, (True, False)):
        for size in results.settings["storms"]:
            cell = of_build(results, build, workers=workers, wait=wait, size=size)
            rows.append([
                build, str(workers), "wait=30" if wait else "-", f"{size:,}", spread(cell, "arrivals").text(),
                spread(cell, "answered").text(), spread(cell, "refused").text(), spread(cell, "seconds").text(3),
            ])  # fmt: skip
    head = ["build", "workers", "Prefer", "duplicates", "arrivals upstream", "got the result", "got 409",
            "until all are answered, s"]  # fmt: skip
    note = f"The upstream takes {results.settings['upstream_seconds']} s for its one request. Median (least-most)."
    return [Table("A storm of duplicates", head, rows, note)]


def plot(results: Results, axes: Any) -> None:
    """Time until all have their answer, by how many there are; dashed, of the compiled build."""
    sizes = results.settings["storms"]
    kinds = list(itertools.product(sorted({sample["workers"] for sample in results.samples}), (True, False)))
    for build in builds.of(results):
        for color, (workers, wait) in enumerate(kinds):
            cells = [of_build(results, build, workers=workers, wait=wait, size=size) for size in sizes]
            label = f"{workers} worker{'s' if workers > 1 else ''}, {'Prefer: wait' if wait else '409 at once'}"
            style = f"C{color}{'--' if build == builds.COMPILED else '-'}"
            label += ", compiled" if build == builds.COMPILED else ""
            axes.plot(sizes, [spread(cell, "seconds").median for cell in cells], style, marker="o", label=label)
    axes.axhline(
        results.settings["upstream_seconds"], color="black", linewidth=0.8, linestyle=":", label="the upstream's time"
    )
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("duplicates of one key, at once")
    axes.set_ylabel("s until all are answered")
    axes.set_title("A storm of duplicates: one arrives upstream")
    axes.legend()

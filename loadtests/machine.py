"""The machine that is measured on: its cores, what processes on it have used, what to say of it beside a result."""

import os
import platform
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any


def cores() -> tuple[int, int]:
    """The core for the process under test, and the one for everything else; the same where there is only one."""
    ours = sorted(os.sched_getaffinity(0))
    return ours[0], ours[-1]


def family(pid: int) -> list[int]:
    """The process and its descendants."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [pid, *(each for child in children for each in family(child))]


def runs(pid: int) -> bool:
    """Whether a process is there, and is not one that only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def cpu_seconds(pid: int) -> float:
    """The processor time that a process and its living descendants have used, of user and system together.

    From schedstat, in ns, where the kernel keeps it; /proc/PID/stat counts in steps of 10 ms.
    """
    return sum(_cpu_seconds(each) for each in family(pid))


def _cpu_seconds(pid: int) -> float:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    """The memory that a process and its descendants have in use. What they share counts once for each."""
    total = 0
    for each in family(pid):
        found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{each}/status").read_text(), re.MULTILINE)
        total += int(found[1]) * 1024 if found else 0
    return total


def maps(pid: int, library: str) -> bool:
    """Whether a process or a descendant has loaded a shared library whose path has ``library`` in it."""
    return any(library in Path(f"/proc/{each}/maps").read_text() for each in family(pid))


def describe() -> dict[str, Any]:
    """What a reader needs to know of this machine."""
    model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    server, load = cores()
    return {
        "processor": model[1] if model else platform.machine(),
        "cores": os.cpu_count(),
        "pinned": "server apart from load, upstream and Redis"
        if server != load
        else "one core for all: not comparable",
        "memory_gib": round(int(memory[1]) / 1024**2, 1) if memory else None,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "python_build": python_build(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def python_build() -> str:
    """How the Python was configured that measures and is measured: one without PGO takes up to a third more per request.

    What a distribution adds to its packages when it makes them is not to be seen.
    """
    arguments = sysconfig.get_config_var("CONFIG_ARGS") or ""
    flags = sysconfig.get_config_var("PY_CFLAGS") or ""
    level = re.findall(r"-O\w*", flags)
    found = [
        "configured with PGO" if "--enable-optimizations" in arguments else "configured without PGO",
        "with LTO" if re.search(r"--with-lto(?!=no)", arguments) else "without LTO",
        *level[-1:],  # the last one counts
    ]
    return ", ".join(found)


def summary(machine: dict[str, Any]) -> str:
    """One line on a machine that `describe` described, perhaps before it told as much."""
    built = f" ({machine['python_build']})" if machine.get("python_build") else ""
    memory = f"{machine['memory_gib']:g} GiB, " if machine["memory_gib"] else ""
    return (
        f"{machine['processor']}, {machine['cores']} cores, {memory}Linux {machine['kernel']}, "
        f"Python {machine['python']}{built}; {machine['pinned']}"
    )


def commit() -> str:
    """The commit that is measured, with ``+`` where the work tree differs from it."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--abbrev=10", "--dirty=+", "--exclude=*"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()

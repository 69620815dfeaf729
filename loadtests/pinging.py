"""How long a server holds its event loop: ``python -m loadtests.pinging PORT PATH PID...``, which are the server's processes.

One small request after another is sent, each as soon as the last one was answered. What the server's processor has done between
a request and its answer was done without looking for requests; what other processes of the machine did meanwhile counts for
nothing. The kernel may add up the time of a process that is never idle 4 ms at once: so a hold is no longer than its request
took. A line on standard input has it begin; the next one has it print the most so far, in ms, and rest. A process of its own, so
that nothing else of Python's delays it.
"""

import os
import select
import socket
import sys
import time
from collections.abc import Sequence

_GIVEN = 0
"""Standard input."""
_OF_ALL_THREADS = 2
"""CPUCLOCK_SCHED of the kernel: the time that the scheduler has counted."""


def main(port: int, path: str, pids: Sequence[int]) -> None:
    """Ask until standard input ends."""
    request = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode()
    clocks = [~pid << 3 | _OF_ALL_THREADS for pid in pids]
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        while os.read(_GIVEN, 1):  # a buffer would hide the second line from select
            longest = 0.0
            while not (longest and select.select([_GIVEN], [], [], 0)[0]):
                used, begun = _used(clocks), time.perf_counter()
                connection.sendall(request)
                _answer(connection)
                taken = time.perf_counter() - begun
                longest = max(longest, min(taken, _used(clocks) - used))
            os.read(_GIVEN, 1)
            sys.stdout.write(f"{longest * 1000:.4f}\n")
            sys.stdout.flush()


def _used(clocks: Sequence[int]) -> float:
    return sum(time.clock_gettime(clock) for clock in clocks)


def _answer(connection: socket.socket) -> None:
    got = b""
    while b"\r\n\r\n" not in got:
        got += connection.recv(65536)
    head, _, body = got.partition(b"\r\n\r\n")
    length = next(
        int(line.partition(b":")[2]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
    )
    while len(body) < length:
        body += connection.recv(65536)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], [int(pid) for pid in sys.argv[3:]])

"""Two servers in turn, a twentieth of a second each, both under load: what disturbs the machine disturbs both alike.

Measured one after the other, for seconds each, two copies of one app differ by a tenth and more on a machine that is shared.
In turns this short they differ by one or two in a hundred.
"""

import os
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from loadtests import processes
from loadtests.load import Target, Wrk

TURN_SECONDS = 0.05


def measure(
    wrk: Wrk, one: Target, other: Target, mode: str, *, connections: int, seconds: float
) -> tuple[float, float]:
    """The CPU (us) per request that ``one`` and ``other`` use, each for about half of ``seconds``.

    Whose turn it isn't, stands still (SIGSTOP). ``watched["server"]`` of each is a process of its own. Requests are those of
    `Wrk.measure`, whose errors and figures of time mean nothing here and are not told.
    """
    both = (one, other)
    seeds = [wrk.prepare(target, mode, connections=connections) for target in both]
    processes.wrk()  # known before two threads ask where it is
    pids = [target.watched["server"].pid for target in both]
    with ThreadPoolExecutor(len(both)) as pool:
        running: list[Future[dict[str, Any]]] = [
            pool.submit(wrk.run, target, mode, seed, connections=connections, seconds=seconds)
            for target, seed in zip(both, seeds, strict=True)
        ]
        try:
            while not all(run.done() for run in running):
                os.kill(pids[0], signal.SIGCONT)
                os.kill(pids[1], signal.SIGSTOP)
                time.sleep(TURN_SECONDS)
                pids.reverse()
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
    first, second = (run.result()["cpu_us"]["server"] for run in running)
    return first, second

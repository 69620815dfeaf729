"""Two servers measured in turn: each figure is its own server's, and both run on afterwards, whatever came of it."""

from pathlib import Path

import pytest

from loadtests import machine, middleware, turns
from loadtests.app import FLOOR
from loadtests.load import Target, Wrk
from loadtests.middleware import Variant
from loadtests.processes import BenchError, Process, free_port

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the benchmarks read processor times from /proc"),
]


def stands_still(process: Process) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_each_of_two_servers_gets_its_own_figure_and_both_run_on() -> None:
    server_core, load_core = machine.cores()
    alone, floor = Variant("alone"), Variant(FLOOR, ("replay",))
    wrk = Wrk(load_core, warm_up=0)
    with middleware.apps(server_core, load_core, [alone, floor], None, patient=True) as (running, redis):

        def target(variant: Variant) -> Target:
            return Target(running[variant].url, {"server": running[variant]}, lambda: 0, redis, strict=False)

        most, least = turns.measure(wrk, target(alone), target(floor), "replay", connections=8, seconds=1)
        assert most > least > 0, "the whole app takes more than an answer out of hand"
        least, most = turns.measure(wrk, target(floor), target(alone), "replay", connections=8, seconds=1)
        assert most > least > 0
        cpu = middleware.in_turns(wrk, floor, running[floor], running[alone], redis, "replay", seconds=1)
        assert cpu["alone"] > cpu["server"] > 0
        nowhere = Target(f"http://127.0.0.1:{free_port()}", {"server": running[floor]}, lambda: 0, redis)
        with pytest.raises(BenchError):
            turns.measure(wrk, target(alone), nowhere, "none", connections=8, seconds=1)
        assert not any(stands_still(process) for process in running.values())

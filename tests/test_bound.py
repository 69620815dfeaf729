"""What tests start ends with them, whenever they are interrupted: no server is left running."""

import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from loadtests import machine
from testing.servers import RedisServer
from testing.template import ROOT
from testing.waiting import wait_until

STARTS = {
    "a server": "from testing.servers import RedisServer as It; it = It(); it.start(); pid = it.pid",
    "a copy": (
        "from testing.template import Forked as It;"
        "pid = It('-c', 'import time; time.sleep(600)', preloaded=(), stdout=-3).pid"
    ),
    "a command": (
        "from testing.command_line import running; it = running('serve', '--upstream', 'http://127.0.0.1:9', '--port', '0');"
        "pid = it.args[0].pid; "
        "from pathlib import Path; from testing.waiting import wait_until;"
        "wait_until(lambda: Path(f'/proc/{pid}/comm').read_text() != 'setpriv\\n', 'its end is bound to ours')"
    ),
}


class Interrupted(RedisServer):
    def _answers(self) -> bool:
        raise KeyboardInterrupt


@pytest.mark.parametrize("start", STARTS.values(), ids=list(STARTS))
def test_what_nobody_holds_ends_with_the_process_that_has_started_it(start: str) -> None:
    program = f"import os; {start}; print(pid, flush=True); os._exit(1)"
    printed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout
    wait_until(lambda: not machine.runs(int(printed)), "it has ended", 20)


def test_what_is_interrupted_while_it_starts_is_ended() -> None:
    server = Interrupted("unix")
    folder = Path(urlsplit(server.url).path).parent
    assert folder.is_dir()
    with pytest.raises(KeyboardInterrupt), server:
        pass
    assert not folder.exists()
    with pytest.raises(RuntimeError, match="not running"):
        _ = server.pid

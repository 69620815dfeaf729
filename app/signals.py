"""What signals do to a gateway and to a worker: some stop it in an orderly way, and none of the usual others ends it.

Left alone, SIGHUP, SIGUSR1 and SIGUSR2 end a process at once, and cut off whoever waits for an answer. They come from a
terminal that is closed, from scripts that rotate logs, from habits of other servers.
"""

import asyncio
import logging
import signal

log = logging.getLogger("oncegate.signals")

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
"""What is in flight is finished; SIGQUIT as nginx and Ctrl-\\ have it."""
IGNORED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def ignore() -> None:
    """To be called before there is an event loop: `IGNORED` do nothing from now on."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)


def log_ignored() -> None:
    """To be called in an event loop of the main thread: `IGNORED` leave a line in the log from now on."""
    loop = asyncio.get_running_loop()
    for number in IGNORED:
        loop.add_signal_handler(number, log.warning, "%s is ignored", number.name)

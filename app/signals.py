"""Signals of a gateway and of a worker: some stop it in an orderly way, and the usual others are ignored.

By default SIGHUP, SIGUSR1 and SIGUSR2 end a process at once, and with it the requests under way. They come from a
terminal that is closed, from scripts that rotate logs, from habits with other servers.
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

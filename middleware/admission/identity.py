"""This process's name in the records that it makes, so that an operator knows where to look."""
# Compiled: docs/decisions/0012-compiled.md

import os
import socket
from functools import lru_cache
from typing import Final

MOST_OF_HOST: Final = 32


@lru_cache(maxsize=64)
def gateway_id(name: str = "") -> str:
    """``host/pid``; of a long host name its end, which is where orchestrators put what differs.

    A ``name`` stands for the host's.
    """
    return f"{(name or socket.gethostname())[-MOST_OF_HOST:]}/{os.getpid()}"


# A forked worker is another gateway. Reading the process id for each claim would be a system call each.
if hasattr(os, "register_at_fork"):  # Windows has none, and never forks
    os.register_at_fork(after_in_child=gateway_id.cache_clear)

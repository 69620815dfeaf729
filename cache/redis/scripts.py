"""The Lua scripts, one per fenced transition; packs commands to the bytes of RESP2."""
# Compiled: docs/decisions/0012-compiled.md

import hashlib
import re
from collections.abc import Sequence
from importlib import resources
from typing import Final

SIZED: Final = 1024
SIZES: Final = [b"$%d\r\n" % size for size in range(SIZED)]
"""The sizes that most parts have, as they stand before them."""


def pack(*parts: bytes) -> bytes:
    """One command as bytes."""
    return b"*%d\r\n" % len(parts) + pack_parts(*parts)


def pack_parts(*parts: bytes) -> bytes:
    """Some of a command's parts as bytes."""
    packed: list[bytes] = []
    for part in parts:
        size = len(part)
        packed += (SIZES[size] if size < SIZED else b"$%d\r\n" % size, part, b"\r\n")
    return b"".join(packed)


ASKING: Final = pack(b"ASKING")
"""Lets the command right behind it run on the node that its slot is being moved to."""


_INCLUDE: Final = re.compile(rb"^ *-- include (\w+)\.lua\n", re.MULTILINE)
_FLAGS: Final = re.compile(rb"\A#!.*\n")
"""The first line of a script; of one that another script includes, that one's counts."""


def _read(name: str) -> bytes:
    """A file of the folder ``lua``, with those that it includes in their places."""
    text = resources.files(__package__).joinpath("lua", f"{name}.lua").read_bytes()
    return _INCLUDE.sub(lambda line: _FLAGS.sub(b"", _read(line[1].decode())), text)


SCRIPTS: Final[list["Script"]] = []
"""All there are: each connection loads them when it is opened."""


class Script:
    """A script file of the folder ``lua``, behind ``head``, called by its digest.

    ``begin`` is what all calls begin with that have a number of ``arguments``, packed, since each request makes such a call.
    """

    def __init__(self, name: str, arguments: int = 0, head: bytes = b"", *, keys: int = 1) -> None:
        self.name = name
        self.source = head + _read(name)
        self.load = pack(b"SCRIPT", b"LOAD", self.source)
        self.digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()
        self._named = pack_parts(b"EVALSHA", self.digest, b"%d" % keys)
        self.begin = b"*%d\r\n%b" % (arguments + 4, self._named)
        SCRIPTS.append(self)

    def call(self, *parts: bytes) -> bytes:
        """The packed command that runs this script on as many keys as it takes, which come first, with its arguments."""
        return b"*%d\r\n%b%b" % (len(parts) + 3, self._named, pack_parts(*parts))

    def call_on(self, keys: Sequence[bytes]) -> bytes:
        """The same of one that takes any number of ``keys``, and nothing else."""
        return pack(b"EVALSHA", self.digest, b"%d" % len(keys), *keys)


CLAIM: Final = Script("claim", 3)
CLAIM_PAST_MAXMEMORY: Final = Script("claim", 3, b"#!lua flags=allow-oom\n")
COMPLETE: Final = Script("complete", 2)
COMPLETE_EXECUTION: Final = Script("complete_execution", keys=2)
RENEW: Final = Script("renew")
RELEASE: Final = Script("release")
GET: Final = Script("get")
PEEK: Final = Script("peek")
RESOLVE: Final = Script("resolve")
PURGE: Final = Script("purge")
APPEND: Final = Script("append")
APPEND_NUMBERED: Final = Script("append_numbered", keys=2)
MEMORY: Final = Script("memory")
OUTLAST: Final = Script("outlast")
PROLONG: Final = Script("prolong")
CHECK_SECRET: Final = Script("check_secret")
KEEP_AUDIT_LINE: Final = Script("keep_audit_line")
KEEP_PROCESS: Final = Script("keep_process", keys=2)
PROCESSES: Final = Script("processes", keys=2)
ACKNOWLEDGE: Final = Script("acknowledge", keys=3)
ACKNOWLEDGE_ALL: Final = Script("acknowledge_all")
CREATE_GROUP: Final = Script("create_group")
LEAVE: Final = Script("leave")
LETTER_HEADS: Final = Script("letter_heads")
RETRY: Final = Script("retry", keys=2)

"""The Lua scripts, one per fenced transition; packs commands to the bytes of RESP2."""
# Compiled: docs/decisions/0012-compiled.md

import hashlib
import re
from importlib import resources
from typing import Final


def pack(*parts: bytes) -> bytes:
    """One command as bytes."""
    return b"*%d\r\n" % len(parts) + pack_parts(*parts)


def pack_parts(*parts: bytes) -> bytes:
    """Some of a command's parts as bytes."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


ASKING: Final = pack(b"ASKING")
"""Lets the command right behind it run on the node that its slot is being moved to."""


_INCLUDE: Final = re.compile(rb"^ *-- include (\w+)\.lua\n", re.MULTILINE)


def _read(name: str) -> bytes:
    """A file of the folder ``lua``, with those that it includes in their places."""
    text = resources.files(__package__).joinpath("lua", f"{name}.lua").read_bytes()
    return _INCLUDE.sub(lambda line: _read(line[1].decode()), text)


class Script:
    """A script file of the folder ``lua``, behind ``head``, called by its digest.

    One with a number of ``arguments`` takes one key, and `call` packs it; any other is packed by `call_with`.
    """

    def __init__(self, name: str, arguments: int = 0, head: bytes = b"", *, keys: int = 1) -> None:
        self.name = name
        self._keys = b"%d" % keys
        self.source = head + _read(name)
        self.load = pack(b"SCRIPT", b"LOAD", self.source)
        digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()
        self.digest = digest
        self._parts = arguments + 1
        # All but the key and the arguments is the same in every call, so it is packed once.
        self._head = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n1\r\n" % (arguments + 4, digest)

    def call(self, *parts: bytes) -> bytes:
        """The packed command that runs this script on a key, which comes first, with its arguments."""
        if len(parts) != self._parts:
            raise TypeError(f"{len(parts)} parts for a script that takes {self._parts}")
        return self._head + pack_parts(*parts)

    def call_ending(self, key: bytes, argument: bytes, last: bytes) -> bytes:
        """The same with the arguments from the second on given by `pack_parts`."""
        return b"%b$%d\r\n%b\r\n$%d\r\n%b\r\n%b" % (self._head, len(key), key, len(argument), argument, last)

    def call_with(self, *parts: bytes) -> bytes:
        """The same with any number of arguments, behind as many keys as the script takes."""
        return pack(b"EVALSHA", self.digest, self._keys, *parts)


CLAIM: Final = Script("claim", 3)
CLAIM_PAST_MAXMEMORY: Final = Script("claim", 3, b"#!lua flags=allow-oom\n")
COMPLETE: Final = Script("complete", 2)
EXTEND: Final = Script("extend", 2)
RELEASE: Final = Script("release", 1)
GET: Final = Script("get", 0)
PEEK: Final = Script("peek", 0)
RESOLVE: Final = Script("resolve", 4)
PURGE: Final = Script("purge", 2)
APPEND: Final = Script("append")
APPEND_NUMBERED: Final = Script("append_numbered", keys=2)
MEMORY: Final = Script("memory", 0)
OUTLAST: Final = Script("outlast", 2)
PROLONG: Final = Script("prolong", 1)
ACKNOWLEDGE: Final = Script("acknowledge", keys=3)
CREATE_GROUP: Final = Script("create_group")
LEAVE: Final = Script("leave")
REDRIVE: Final = Script("redrive", keys=2)
SCRIPTS: Final = (
    CLAIM,
    CLAIM_PAST_MAXMEMORY,
    COMPLETE,
    EXTEND,
    RELEASE,
    GET,
    PEEK,
    RESOLVE,
    PURGE,
    APPEND,
    APPEND_NUMBERED,
    MEMORY,
    OUTLAST,
    PROLONG,
    ACKNOWLEDGE,
    CREATE_GROUP,
    LEAVE,
    REDRIVE,
)

"""The Lua scripts, one per fenced transition, and commands packed to the bytes that go over the wire (RESP2)."""

import hashlib
from importlib import resources


def pack(*parts: bytes) -> bytes:
    """One command as bytes."""
    return b"*%d\r\n" % len(parts) + b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


class Script:
    """A script file beside this module, called by its digest. Each takes one key."""

    def __init__(self, name: str, arguments: int) -> None:
        self.name = name
        source = resources.files(__package__).joinpath(f"{name}.lua").read_bytes()
        self.load = pack(b"SCRIPT", b"LOAD", source)
        # Everything before the key is the same in every call, so it is packed once.
        digest = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
        self._head = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n1\r\n" % (arguments + 4, digest)
        self._tail = b"$%d\r\n%b\r\n" * arguments

    def call(self, key: bytes, *arguments: bytes) -> bytes:
        """The packed command that runs this script on ``key``."""
        sized: list[int | bytes] = []
        for argument in arguments:
            sized += (len(argument), argument)
        return b"%b$%d\r\n%b\r\n" % (self._head, len(key), key) + self._tail % tuple(sized)


CLAIM = Script("claim", 3)
COMPLETE = Script("complete", 2)
EXTEND = Script("extend", 2)
RELEASE = Script("release", 1)
GET = Script("get", 0)
SCRIPTS = (CLAIM, COMPLETE, EXTEND, RELEASE, GET)

"""The Lua scripts, one per fenced transition, and commands packed to the bytes that go over the wire (RESP2)."""

import hashlib
from importlib import resources
from typing import Final


def pack(*parts: bytes) -> bytes:
    """One command as bytes."""
    return b"*%d\r\n" % len(parts) + b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


ASKING: Final = pack(b"ASKING")
"""Lets the command right behind it run on the node that its slot is being moved to."""


class Script:
    """A script file beside this module, called by its digest. Each takes one key."""

    def __init__(self, name: str, arguments: int) -> None:
        self.name = name
        self.source = resources.files(__package__).joinpath(f"{name}.lua").read_bytes()
        self.load = pack(b"SCRIPT", b"LOAD", self.source)
        digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()
        self.digest = digest
        # All but the key and the arguments is the same in every call, so it is packed once.
        head = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n1\r\n" % (arguments + 4, digest)
        self._format = head + b"$%d\r\n%b\r\n" * (arguments + 1)

    def call(self, *parts: bytes) -> bytes:
        """The packed command that runs this script on a key, which comes first, with its arguments."""
        if len(parts) == 3:  # an outcome's
            a, b, c = parts
            return self._format % (len(a), a, len(b), b, len(c), c)
        fields: list[int | bytes] = []
        for part in parts:
            fields += (len(part), part)
        return self._format % tuple(fields)

    def ending(self, *last: bytes) -> bytes:
        """What `call` gives with these for its last arguments, as a format for length and value of each of those before."""
        filled = b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in last]).replace(b"%", b"%%")
        return self._format.removesuffix(b"$%d\r\n%b\r\n" * len(last)) + filled

    def call_with(self, *parts: bytes) -> bytes:
        """The same with any number of arguments."""
        return pack(b"EVALSHA", self.digest, b"1", *parts)


CLAIM: Final = Script("claim", 3)
COMPLETE: Final = Script("complete", 2)
EXTEND: Final = Script("extend", 2)
RELEASE: Final = Script("release", 1)
GET: Final = Script("get", 0)
PEEK: Final = Script("peek", 0)
RESOLVE: Final = Script("resolve", 4)
APPEND: Final = Script("append", 1)
SCRIPTS: Final = (CLAIM, COMPLETE, EXTEND, RELEASE, GET, PEEK, RESOLVE, APPEND)

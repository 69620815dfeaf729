"""What an operator should know about a Redis before records are trusted to it."""

import asyncio

from hiredis import ReplyError

from oncegate.cache import faults
from oncegate.cache.dial import info_fields
from oncegate.cache.link import Link, Reply
from oncegate.cache.scripts import pack

_EVICTS = "maxmemory-policy is {policy}: records would be evicted without a word, and their commands run again; set noeviction"
_VOLATILE = "no persistence (appendonly no, save empty): a restart of Redis forgets every record; set appendonly yes"
_NO_KILL = (
    "the user may not run CLIENT KILL: after a broken connection, a claim may be made that nobody withdraws; allow it"
)
_REPLICA = "this Redis is a replica: it takes no claims; use the primary's address"
_NOBODY = 2**63 - 1
"""A client id that no client has: to ask whether `CLIENT KILL` would be allowed."""


async def advise(link: Link, deadline: float) -> list[str]:
    """Advice, a line each, in one round trip. What the user's permissions don't show is passed over in silence."""
    commands = (
        pack(b"INFO", b"memory"),
        pack(b"INFO", b"persistence"),
        pack(b"INFO", b"replication"),
        pack(b"CONFIG", b"GET", b"save"),
        pack(b"CLIENT", b"KILL", b"ID", b"%d" % _NOBODY),
    )
    memory, persistence, replication, save, kill = await asyncio.gather(
        *[link.send(each, deadline) for each in commands]
    )
    for reply in (memory, kill):
        if isinstance(reply, ReplyError) and faults.reply_class(reply) != "NOPERM":
            raise faults.of_reply(reply)
    lines = []
    policy = info_fields(memory).get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        lines.append(_EVICTS.format(policy=policy))
    if info_fields(persistence).get("aof_enabled") == "0" and _is_empty(save):
        lines.append(_VOLATILE)
    if info_fields(replication).get("role") == "slave":
        lines.append(_REPLICA)
    if isinstance(kill, ReplyError):
        lines.append(_NO_KILL)
    return lines


def _is_empty(save: Reply) -> bool:
    return isinstance(save, list) and len(save) == 2 and save[1] == b""

"""Checks a Redis before records are trusted to it, and advises the operator."""

import asyncio
from collections.abc import Mapping

from hiredis import ReplyError

from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.connection.connect import info_fields
from oncegate.cache.redis.connection.pipe import PipelinedConnection, Reply
from oncegate.cache.redis.connection.server import Session
from oncegate.cache.redis.scripts import pack
from oncegate.cache.store import Described

_EVICTS = "maxmemory-policy is {policy}: records would be evicted without a word, and their commands run again; set noeviction"
_VOLATILE = "no persistence (appendonly no, save empty): a restart of Redis forgets every record; set appendonly yes"
_NO_KILL = (
    "the user may not run CLIENT KILL: after a broken connection, a claim may be made that nobody withdraws; allow it"
)
_REPLICA = "this Redis is a replica: it takes no claims; use the primary's address"
_ALONE = (
    "min-replicas-to-write is 0: a master that is cut off from its replicas goes on taking claims, which a failover then "
    "forgets; set min-replicas-to-write 1"
)
_NOBODY = 2**63 - 1
"""A client id that no client has: to find out whether `CLIENT KILL` is allowed."""


Part = dict[str, str | int]
"""A server in numbers: see `oncegate.cache.store.Described`."""


async def advise_all(sessions: list[Session], deadline: float) -> list[str]:
    """Advice about all servers that hold keys. One of several that is down is one line; raises where all are."""
    return (await describe_all(sessions, deadline)).advice


async def describe_all(sessions: list[Session], deadline: float) -> Described:
    """All servers that hold keys in numbers, with that advice. One of several that is down is one line; raises where all are."""
    if len(sessions) == 1:
        part, advice = await examine(await sessions[0].claims.ready(deadline), deadline)
        return Described("redis", [{"name": sessions[0].place, **part}], advice)

    async def examine_one(session: Session) -> tuple[Part, list[str]] | CacheUnavailable:
        try:
            return await examine(await session.claims.ready(deadline), deadline)
        except CacheUnavailable as error:
            return error

    answers = await asyncio.gather(*map(examine_one, sessions))
    faults_found = [answer for answer in answers if isinstance(answer, CacheUnavailable)]
    if len(faults_found) == len(sessions):
        raise faults_found[0]
    parts: list[Part] = []
    lines = []
    for session, answer in zip(sessions, answers, strict=True):
        part, found = ({}, [f"it can't be used: {answer}"]) if isinstance(answer, CacheUnavailable) else answer
        parts.append({"name": session.place, **part})
        lines += [f"{session.place}: {line}" for line in found]
    return Described("redis", parts, lines)


async def examine(pipeline: PipelinedConnection, deadline: float) -> tuple[Part, list[str]]:
    """A server in numbers, and advice, a line each, in one round trip. What the user's permissions don't show is left out."""
    commands = (
        pack(b"INFO", b"memory"),
        pack(b"INFO", b"persistence"),
        pack(b"INFO", b"replication"),
        pack(b"CONFIG", b"GET", b"save"),
        pack(b"CONFIG", b"GET", b"min-replicas-to-write"),
        pack(b"CLIENT", b"KILL", b"ID", b"%d" % _NOBODY),
    )
    memory, persistence, replication, save, replicas, kill = await asyncio.gather(
        *[pipeline.send(each, deadline) for each in commands]
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
    role = info_fields(replication)
    if role.get("role") == "slave":
        lines.append(_REPLICA)
    if role.get("connected_slaves", "0") != "0" and isinstance(replicas, list) and replicas[1:] == [b"0"]:
        lines.append(_ALONE)
    if isinstance(kill, ReplyError):
        lines.append(_NO_KILL)
    return _part(info_fields(memory), info_fields(persistence), save), lines


def _part(memory: Mapping[str, str], persistence: Mapping[str, str], save: Reply) -> Part:
    part: Part = {}
    for name, field in (("used_bytes", "used_memory"), ("limit_bytes", "maxmemory")):
        if memory.get(field, "").isdecimal():
            part[name] = int(memory[field])
    if "maxmemory_policy" in memory:
        part["policy"] = memory["maxmemory_policy"]
    if persistence.get("aof_enabled") == "1":
        part["persistence"] = "aof"
        part["last_save"] = persistence.get("aof_last_write_status", "")
    elif "aof_enabled" in persistence and isinstance(save, list) and not _is_empty(save):
        part["persistence"] = "rdb"
        part["last_save"] = persistence.get("rdb_last_bgsave_status", "")
    elif "aof_enabled" in persistence and _is_empty(save):
        part["persistence"] = "none"
    return part


def _is_empty(save: Reply) -> bool:
    return isinstance(save, list) and len(save) == 2 and save[1] == b""

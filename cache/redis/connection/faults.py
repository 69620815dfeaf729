"""Maps Redis's errors to this package's. The texts are one line and hold no credential, key or URL."""
# Compiled: docs/decisions/0012-compiled.md

import os
import re
import ssl
from typing import Final, TypeVar

from hiredis import ReplyError
from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import TimeoutError as RedisTimeout

from oncegate.cache.errors import (
    CacheError,
    CacheFull,
    CacheRefused,
    CacheUnavailable,
    CacheUnsupported,
    GroupMissing,
    RecordUnreadable,
)

LEAST_VERSION: Final = (7, 0)

REPLICA: Final = "Redis is a replica now"
"""Why a connection is cut after a READONLY reply: after a failover, the next call must look the server up again."""

REPLICA_REPLIES: Final = frozenset({"READONLY", "MASTERDOWN"})
"""Errors that only a replica answers with."""
REDIRECTIONS: Final = frozenset({"MOVED", "ASK"})
"""Another node of the cluster has the key. The command did not run."""
UNDECIDED: Final = frozenset({"TRYAGAIN", "CLUSTERDOWN"})
"""No node of the cluster can run the command right now. It did not run."""
_PASSING: Final = REPLICA_REPLIES | REDIRECTIONS | UNDECIDED | {"LOADING", "BUSY"}
"""Errors that are over by themselves: soon another server, or this one, takes the command."""

_PORT: Final = re.compile(r"[0-9]{1,5}")
_CLASS: Final = re.compile(r"[A-Z][A-Z0-9]{1,30}(?=[ :]|$)")
_HINTS: Final = {
    "ERR": "an error that it does not classify",
    "OOM": "it is out of memory",
    "MISCONF": "it can't save to disk and therefore takes no writes",
    "NOREPLICAS": "it has too few replicas and therefore takes no writes",
    "READONLY": "it is a replica",
    "NOAUTH": "it asks for a login",
    "NOPERM": "its user lacks a permission that oncegate needs",
    "WRONGPASS": "the login was refused",
    "LOADING": "it is loading its data",
    "BUSY": "another client's script keeps it busy",
    "MOVED": "it is part of a cluster: redis+cluster:// finds the right node",
    "ASK": "it is part of a cluster: redis+cluster:// finds the right node",
    "CLUSTERDOWN": "the cluster can't serve this key",
    "TRYAGAIN": "the cluster is moving this key",
    "MASTERDOWN": "it is a replica that has lost its primary",
}
_WHAT_TO_DO: Final = {
    "OOM": "raise maxmemory, or keep records for a shorter time (ttl)",
    "READONLY": "use the primary's address, or Sentinel's",
    "NOPERM": "let the user run EVALSHA and SCRIPT LOAD, and read and write the keys NAMESPACE:* and {NAMESPACE:*",
    "MISCONF": "see Redis's log and its disk: it takes writes again when it can save",
    "NOREPLICAS": "bring replicas back, or lower min-replicas-to-write",
    "CLUSTERDOWN": "see CLUSTER INFO: a part of the slots is served by nobody",
}
"""Notes (PEP 678) on an error, for who operates Redis."""

Kind = TypeVar("Kind", bound=CacheError)


def reply_class(error: ReplyError) -> str:
    """The class of an error reply (``OOM``, ``NOSCRIPT``...), which is its first word; the rest may hold keys."""
    match = _CLASS.match(str(error))
    return match.group() if match else "ERR"


def redirection(error: ReplyError) -> tuple[str, int] | None:
    """The target of a ``MOVED`` or ``ASK`` reply: a host (empty: the one that replied) and a port; ``None``: no redirection."""
    _, _, target = str(error).rpartition(" ")
    host, _, port = target.rpartition(":")
    return (host, int(port)) if _PORT.fullmatch(port) and host != "?" else None


def of_reply(error: ReplyError) -> CacheError:
    """The error that an error reply to a command stands for."""
    kind = reply_class(error)
    if kind == "WRONGTYPE":
        return RecordUnreadable("a record is damaged: Redis holds another type of value under its key")
    return _refused(CacheUnavailable, kind)


def of_claim_reply(error: ReplyError) -> CacheError:
    """The error that an error reply to a claim stands for: there, OOM means that nothing was written for lack of memory."""
    kind = reply_class(error)
    return _refused(CacheFull, kind) if kind == "OOM" else of_reply(error)


def of_append_reply(error: ReplyError) -> CacheRefused:
    """The error that an error reply to appending stands for, whatever it is: nothing was appended."""
    return _refused(CacheRefused, reply_class(error))


def of_stream_reply(error: ReplyError) -> CacheUnavailable:
    """The error that an error reply to a command on a stream stands for. `CacheRefused`: trying again soon is of no use."""
    kind = reply_class(error)
    if kind == "NOGROUP" or "no such key" in str(error):
        return GroupMissing("the stream or its group is not there")
    return _refused(CacheUnavailable if kind in _PASSING else CacheRefused, kind)


def _refused(error: type[Kind], kind: str) -> Kind:
    hint = _HINTS.get(kind)
    refused = error(f"Redis refused the command: {kind}" + (f" ({hint})" if hint else ""))
    if kind in _WHAT_TO_DO:
        refused.add_note(_WHAT_TO_DO[kind])
    return refused


def of_opening(error: RedisError | OSError | RuntimeError, place: str) -> CacheError:
    """The error for a connection to ``place`` that could not be opened."""
    return CacheUnavailable(f"Redis at {place} can't be used: {_reason(error)}")


def _reason(error: BaseException) -> str:
    if isinstance(error, AuthenticationError) or "WRONGPASS" in str(error):
        return "the login was refused"
    cause = error if isinstance(error, OSError) else error.__cause__ or error.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate was not accepted ({cause.verify_message})"
    if isinstance(cause, ssl.SSLError):
        reason = getattr(cause, "reason", None)  # none for what Python knows no name of, whatever its type says
        return f"TLS failed ({reason or 'no reason given'})"
    if isinstance(error, RedisTimeout | TimeoutError):
        return "it did not answer in time"
    if isinstance(cause, OSError):
        return _system_error(cause)
    return "the connection was lost" if isinstance(error, RuntimeError) else type(error).__name__


def _system_error(error: OSError) -> str:
    """The system's own words. asyncio replaces them, and for a name with several addresses even hides the number."""
    if error.errno is None:
        match = re.search(r"\[Errno (\d+)\]", str(error))
        return os.strerror(int(match.group(1))) if match else type(error).__name__
    return os.strerror(error.errno) if error.errno > 0 else error.strerror or type(error).__name__


def check_version(text: str) -> tuple[int, ...]:
    """The version as numbers; raises `CacheUnsupported` where it is older than 7.0 or can't be made out."""
    numbers = tuple(int(part) for part in re.findall(r"[0-9]{1,9}", text)[:3])
    if numbers < LEAST_VERSION:
        found = text if numbers else "of unknown version"
        raise CacheUnsupported(f"Redis {found} is too old: oncegate needs Redis 7.0 or newer; upgrade the server")
    return numbers

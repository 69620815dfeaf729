"""How gateways and workers stand: the processes that are up, their cache, the settings in effect."""

from typing import Any, Literal

from pydantic import AwareDatetime, Field

from oncegate.app.operators.pages.described.document import Digest, Missing, Sent
from oncegate.app.operators.pages.described.gateway import DecidedShape


class ProcessShape(Sent):
    name: str = Field(description="host/pid, as in records and audit lines; a worker's as in streams/")
    kind: str = Field(description="gateway or worker (of commands)")
    gateway: str = Field(description="What all processes of one gateway have in common: the name of the first one")
    version: str
    build: str = Field(description="The commit, and whether it is compiled")
    configuration: str = Field(description="The digest of its settings")
    reads: str = Field(description="A worker's stream and consumer; empty for a gateway")
    started: AwareDatetime | None
    last_seen: AwareDatetime | None = Field(description="When it last kept its entry, which it does every 10 s")
    silent_for: float = Field(description="The same in seconds. One of 30 s is not listed any more")


class ProcessList(Sent):
    processes: list[ProcessShape] = Field(description="At most 1,000")
    minutes: int = Field(description="Of how many minutes decisions are")
    decisions: list[DecidedShape] = Field(description="Of all gateways that are up, the most frequent first")
    decisions_of: list[str] = Field(description="These gateways")
    complete: bool = Field(description="Whether those are all: of each gateway the 100 most frequent are counted")
    differences: list[str] = Field(
        description="Where two run different configurations, versions or builds: a line each"
    )


class CachePart(Sent):
    """A server, a file or a database; a member that isn't known, or that it doesn't have, is left out."""

    name: str | Missing = None
    used_bytes: int | Missing = None
    limit_bytes: int | Missing = Field(default=None, description="0: none")
    policy: str | Missing = Field(default=None, description="maxmemory-policy")
    persistence: str | Missing = Field(default=None, description="Redis: aof, rdb or none. Others: in words")
    last_save: str | Missing = Field(
        default=None, description="Redis: how the last write of its AOF, or its last RDB, ended"
    )
    records: int | Missing = Field(default=None, description="memory: how many there are")


class CacheShape(Sent):
    kind: str = Field(description="memory, redis, sqlite, postgresql")
    url: str = Field(description="Without credentials")
    state: Literal["available", "read-only", "unavailable"]
    failed: str | None = Field(description="Why it could not be looked at")
    parts: list[CachePart]
    advice: list[str] = Field(description="What oncegate check advises about it")


class SettingShape(Sent):
    name: str = Field(description="The way to it: idempotency.ttl, routes.0.path")
    value: Any = Field(description="null: it is not set, or left out")
    source: str = Field(description="default, command line, a variable, or a file and its line")
    secret: bool = Field(description="Whether it is set, and its value left out")


class SettingList(Sent):
    configuration: Digest = Field(description="The digest of what is in effect")
    process: str = Field(description="The host and process that answers")
    settings: list[SettingShape]

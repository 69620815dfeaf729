"""One box that takes anything: a key, and every id that a page shows.

Of an id that no store has, the page names the place where it is. Where the consumers' database is given, the box also takes
an aggregate's id, and that of a message of an outbox.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response

from oncegate.app.operators.audit_lines import MOST_LINES
from oncegate.app.operators.console.frame import ConsolePage, PageRefused, Visit, below
from oncegate.app.operators.records.newest import CALLER_DIGEST, Chosen, newest
from oncegate.middleware.rules.errors import KeyInvalid
from oncegate.middleware.rules.keys.key import RECORD_ID

MOST_ROWS: Final = 50
SCANNED: Final = 2000
"""Records, and dead letters, that are looked at for what no store knows them by; the page says so."""
_MOST: Final = 1000
_TRACE: Final = re.compile(r"(?:00-)?([0-9a-f]{32})(?:-[0-9a-f]{16}-[0-9a-f]{2})?")
_PROCESS: Final = re.compile(r"[^\s/]+/[0-9]+")
_REQUEST: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(slots=True)
class _Found:
    """The findings: ``rows`` are records, ``links`` other pages (words, and an address below the console), ``notes`` the rest."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    links: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, rows: list[dict[str, Any]]) -> None:
        self.rows |= {row["id"]: row for row in rows}

    def link(self, words: str, address: str) -> None:
        if (words, address) not in self.links:
            self.links.append((words, address))


async def box(visit: Visit) -> Response:
    """The box."""
    return await _page(visit)


async def find(visit: Visit) -> Response:
    """The findings. By a form that is posted: a key must not be in an address."""
    what = visit.form.get("what", "").strip()
    if not what:
        raise PageRefused(400, "Give a key, or any id.")
    if len(what) > _MOST:
        raise PageRefused(400, f"That is longer than {_MOST} characters, and no key or id.")
    found = _Found()
    await _records(visit, what, found)
    if not found.rows:
        await _others(visit, what, found)
    kept: Mapping[str, Any] = {}
    if visit.sources.database is not None:
        from oncegate.app.operators.console.database.in_database import found_in_database

        kept, notes = await found_in_database(visit.sources.database, what)
        found.notes += notes
    if len(found.rows) + len(found.links) == 1 and not kept:
        return visit.to(f"/records/{next(iter(found.rows))}" if found.rows else found.links[0][1])
    return await _page(visit, what, found, kept)


async def _page(
    visit: Visit, what: str = "", found: _Found | None = None, kept: Mapping[str, Any] | None = None
) -> Response:
    nothing = found is not None and not (found.rows or found.links or kept)
    return await visit.page(
        "find.html",
        "Find",
        what=what,
        found=found,
        kept=kept,
        nothing=nothing,
        log_line=_log_line(what) if nothing else "",
        has_database=visit.sources.database is not None,
    )


async def _records(visit: Visit, what: str, found: _Found) -> None:
    """Records: by their ids in the text, by a trace, by a process, by a key."""
    records = visit.sources.records
    named = list(dict.fromkeys(RECORD_ID.findall(what)))[:MOST_ROWS]
    if named:
        found.add(await records.rows(named))
        if found.rows:
            return
        found.notes.append("A record of that id is not there: it was never made, its time is over, or it was released.")
    traced = _TRACE.fullmatch(what)
    if traced is not None:
        await _newest(visit, Chosen(trace_id=traced[1]), "trace", found)
    if _PROCESS.fullmatch(what):
        await _newest(visit, Chosen(gateway=what), "process", found)
    if found.rows:
        return
    try:
        identifiers = await records.of_key(what)
    except KeyInvalid:  # an aggregate's id, or a route, may be no key
        return
    if len(identifiers) > MOST_ROWS:
        found.notes.append(f"{len(identifiers)} callers use that key. These are {MOST_ROWS} of their records.")
    found.add(await records.rows(identifiers[:MOST_ROWS]))


async def _newest(visit: Visit, chosen: Chosen, name: str, found: _Found) -> None:
    looked = await newest(visit.sources.records, chosen, limit=MOST_ROWS, most=SCANNED)
    found.add(looked["records"])
    if not looked["complete"]:
        found.notes.append(f"{looked['scanned']} records were looked at for that {name}, and there are others.")


async def _others(visit: Visit, what: str, found: _Found) -> None:
    """Findings besides: a caller, a route, a configuration, a process; an entry, a dead letter, an aggregate of a stream."""
    policy = visit.sources.policy()
    if CALLER_DIGEST.fullmatch(what):
        looked = await newest(visit.sources.records, Chosen(callers=frozenset([what])), limit=1, most=SCANNED)
        if looked["records"]:
            found.link("a caller's digest: its records", f"/records?{urlencode({'caller': what})}")
        elif what in await _refused(visit):
            found.link("the digest of a caller who was refused", "/callers?minutes=60")
    if what in {route["path"] for route in policy["routes"]}:
        found.link("a route: its records", f"/records?{urlencode({'route': what})}")
    if what == policy["configuration"]:
        found.link("the configuration that is in effect", "/routes")
    if visit.sources.audit is not None:
        lines = (await visit.sources.audit.listing(limit=MOST_LINES, operator=None))["lines"]
        if any(what in (line["process"], *line["what"].split()) for line in lines):
            found.link("what was changed, or a process that has done it: the audit", "/audit")
    for name in visit.sources.streams:
        await _in_stream(visit, name, what, found)


async def _refused(visit: Visit) -> set[str | None]:
    return {each["caller"] for each in (await visit.sources.refusals.listing(60, MOST_ROWS))["callers"]}


async def _in_stream(visit: Visit, name: str, what: str, found: _Found) -> None:
    from oncegate.app.operators.letters.search import command_of_entry, letters_named  # loads redis-py's client
    from oncegate.app.operators.letters.streams import stream_state
    from oncegate.cache.redis.streams.entry_id import ENTRY_ID

    commands = visit.sources.streams[name]
    letters, complete = await letters_named(commands, what, SCANNED)
    for letter in letters[:MOST_ROWS]:
        about = f", about {what}" if letter.aggregate == what else ""
        found.link(f"a dead letter of {name}{about}", below("/commands/letter", stream=name, id=letter.id))
    if not complete and not letters:
        found.notes.append(f"The newest {SCANNED} dead letters of {name} were looked at, and there are others.")
    command = await command_of_entry(commands, what) if ENTRY_ID.fullmatch(what) and not letters else ""
    if command:
        found.link(f"an entry of {name}: its command", f"/records/{command}")
    if what == name or what == commands.consumer:
        found.link(f"the stream {name}", "/commands")
    elif _PROCESS.fullmatch(what):
        groups = (await stream_state(commands))["groups"]
        if any(worker["name"] == what for group in groups for worker in group["workers"]):
            found.link(f"a worker of {name}", "/commands")


def _log_line(what: str) -> str:
    """The command that finds a request's id, or a trace's, in the access log; empty for what can be neither."""
    traced = _TRACE.fullmatch(what)
    if traced is not None:
        return shlex.join(["grep", f'"trace_id":"{traced[1]}"', "ACCESS_LOG"])
    return shlex.join(["grep", f'"request_id":"{what}"', "ACCESS_LOG"]) if _REQUEST.fullmatch(what) else ""


PAGES = (ConsolePage("/find", box, "Find"), ConsolePage("/find", find, method="POST"))

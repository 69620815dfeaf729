"""The commands: how far their consumers are, and those that were given up, by error and one by one, retried or discarded."""

from typing import Any, Final

from starlette.responses import Response

from oncegate.app.operators.audit import Author
from oncegate.app.operators.console.frame import ConsolePage, PageRefused, Visit, below
from oncegate.app.operators.letters.changes import change_group, change_letters
from oncegate.app.operators.letters.dead_letters import Commands
from oncegate.app.operators.letters.group import GROUP
from oncegate.app.operators.letters.groups import by_error, letters_of
from oncegate.app.operators.letters.streams import stream_state
from oncegate.app.operators.showing import whole_command
from oncegate.cache.errors import CacheError
from oncegate.cache.redis.streams.entry_id import ENTRY_ID

SCANNED: Final = 1000
"""Dead letters that are looked at for one page; the page says so, and what looks at more."""
LISTED: Final = 50
MOST_SHOWN: Final = 64 * 1024
"""Characters of a payload that a page shows."""
_GONE: Final = "There is no such dead letter any more. Nothing was changed."
_UNREAD: Final = "the consumer reads the stream no more. Start its worker first."


async def commands(visit: Visit) -> Response:
    """How far the consumers are, and the commands that were given up."""
    streams = [await _stream(visit, name) for name in visit.sources.streams]
    return await visit.page("commands.html", "Commands", streams=streams, address=below)


async def _stream(visit: Visit, name: str) -> dict[str, Any]:
    try:
        of = visit.sources.streams[name]
        return {"name": name, "state": await stream_state(of), "errors": await by_error(of, most=SCANNED)}
    except CacheError as error:
        return {"name": name, "failed": str(error)}


async def error(visit: Visit) -> Response:
    """The dead letters of one error."""
    stream, group = visit.query("stream"), _group(visit.query("group"))
    letters, more = await letters_of(_of(visit, stream), group, LISTED)
    if not letters:
        raise PageRefused(404, "There is no dead letter of this error among the newest ones.")
    rows = [letter.as_json() for letter in letters]
    return await visit.page(
        "dead-letters.html",
        "Dead letters of one error",
        stream=stream,
        group=group,
        rows=rows,
        more=more,
        address=below,
    )


async def change_error(visit: Visit) -> Response:
    """Retry or discard all dead letters of one error, a bounded number at a time."""
    stream, group, author = visit.form.get("stream", ""), _group(visit.form.get("group", "")), visit.author()
    is_retry = _is_retry(visit)
    changed = await change_group(_of(visit, stream), visit.sources.audit, group, author, retries=is_retry)
    notice = f"{changed['changed']} dead letters were {'retried' if is_retry else 'discarded'}."
    if changed["unread"]:
        notice += f" {changed['unread']} stay: {_UNREAD}"
    if changed["more"]:
        notice += " There may be more of this error: do it again."
    return visit.to("/commands", notice)


async def letter(visit: Visit) -> Response:
    """One command that was given up."""
    stream, identifier = visit.query("stream"), _entry(visit.query("id"))
    return await _letter(visit, stream, await _of(visit, stream).show(identifier))


async def payload(visit: Visit) -> Response:
    """The same with its key and its payload, which may hold what is secret: each look at it is a line of the audit."""
    stream, identifier = visit.form.get("stream", ""), _entry(visit.form.get("id", ""))
    shown = await whole_command(_of(visit, stream), visit.sources.audit, identifier, Author(visit.operator))
    return await _letter(visit, stream, shown)


async def _letter(visit: Visit, stream: str, shown: dict[str, Any] | None) -> Response:
    if shown is None or not shown["dead_letters"]:
        raise PageRefused(404, "There is no such dead letter: it was retried or discarded, or its time is over.")
    one = shown["dead_letters"][0]
    body = one.get("body", "")
    if len(body) > MOST_SHOWN:
        body = f"{body[:MOST_SHOWN]}\n(cut off: `oncegate commands show --body` has all of it)"
    return await visit.page("dead-letter.html", "Dead letter", stream=stream, command=shown, letter=one, body=body)


async def change_letter(visit: Visit) -> Response:
    """Retry or discard one dead letter."""
    stream, identifier, author = visit.form.get("stream", ""), _entry(visit.form.get("id", "")), visit.author()
    is_retry = _is_retry(visit)
    done = await change_letters(_of(visit, stream), visit.sources.audit, identifier, author, retries=is_retry)
    if not done.changed:
        raise PageRefused(409, f"Nothing was changed: {_UNREAD}") if done.unread else PageRefused(404, _GONE)
    notice = f"The dead letter {identifier} was {'retried' if is_retry else 'discarded'}."
    if done.unread:
        notice += f" {len(done.unread)} more of it stay: {_UNREAD}"
    return visit.to("/commands", notice)


def _of(visit: Visit, stream: str) -> Commands:
    commands = visit.sources.streams.get(stream)
    if commands is None:
        raise PageRefused(404, "No route of this gateway has such a stream.")
    return commands


def _is_retry(visit: Visit) -> bool:
    wanted = visit.form.get("do", "")
    if wanted not in ("retry", "discard"):
        raise PageRefused(400, "Say whether to retry or to discard. Nothing was changed.")
    return wanted == "retry"


def _group(given: str) -> str:
    if not GROUP.fullmatch(given):
        raise PageRefused(404, "There is no such error.")
    return given


def _entry(given: str) -> str:
    if not ENTRY_ID.fullmatch(given):
        raise PageRefused(404, "That is no id of a dead letter.")
    return given


PAGES = (
    ConsolePage("/commands", commands, "Commands"),
    ConsolePage("/commands/error", error),
    ConsolePage("/commands/error", change_error, method="POST", changes=True),
    ConsolePage("/commands/letter", letter),
    ConsolePage("/commands/letter", change_letter, method="POST", changes=True),
    ConsolePage("/commands/payload", payload, method="POST"),
)

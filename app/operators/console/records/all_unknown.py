"""All unknown outcomes of a choice, resolved or released at once: counted first, confirmed, then done step by step.

Strategy. The job is in its forms: each step is one POST, which changes a bounded number and brings the form that goes on. So any
worker and any gateway may take the next step, nothing runs without somebody who looks, and to stop is to leave the page. The
count goes on by itself, since it changes nothing (a Refresh header, no script); the steps do where scripts run.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

from starlette.responses import Response

from oncegate.app.operators.audit import Author
from oncegate.app.operators.console.frame import ConsolePage, PageRefused, Visit
from oncegate.app.operators.console.records.choices import choice_of, which_of
from oncegate.app.operators.records.resolving import resolution
from oncegate.app.operators.records.unknown_changes import change_unknown
from oncegate.cache.record import State
from oncegate.cache.transitions import ResolveRequest
from oncegate.middleware.outcome.instants import instant
from oncegate.middleware.outcome.responses import now_ms

COUNTED: Final = 2000
"""Records that one page looks at while it counts."""
COUNT_SECONDS: Final = 0.2
DONE: Final = {
    "succeeded": "resolved as executed",
    "failed": "resolved as not executed",
    "release": "released",
}
_MOST_DIGITS: Final = 15
_TALLIES: Final = ("found", "resolved", "refused", "left")


async def count(visit: Visit) -> Response:
    """The number of those that are meant: a page counts some, and leads on until it has looked at all."""
    given = visit.request.query_params
    choice, so_far, until = choice_of(given), _tallies(given), _until(given)
    step = await change_unknown(
        visit.sources.records,
        None,
        which_of(choice, until),
        ResolveRequest(None),
        Author(),
        cursor=given.get("cursor", ""),
        most=COUNTED,
        dry_run=True,
        seconds=COUNT_SECONDS,
    )
    counted = {name: so_far[name] + step[name] for name in ("found", "left")}
    carried = _chosen(choice) | {"until": str(until)}
    if step["complete"]:
        return await _page(visit, choice, until, carried | {"found": str(counted["found"])}, counted)
    further = urlencode(carried | counted | {"cursor": step["cursor"]})
    answer = await _page(visit, choice, until, carried, counted, further=further)
    answer.headers["refresh"] = f"0; url={visit.base}/unknown/all?{further}"
    return answer


async def change(visit: Visit) -> Response:
    """The next step: it changes some, and leads on."""
    form, author = visit.form, visit.author()
    choice, so_far, until = choice_of(form), _tallies(form), _until(form)
    if not form.get("until"):
        raise PageRefused(400, "Count them first. Nothing was changed.")
    step = await change_unknown(
        visit.sources.records,
        visit.sources.audit,
        which_of(choice, until),
        _finding(form),
        author,
        cursor=form.get("cursor", ""),
    )
    done = {name: so_far[name] + step[name] for name in ("resolved", "refused", "left")} | {"found": so_far["found"]}
    outcome = form["as"]
    if step["complete"]:
        return visit.to("/unknown", _result(done, outcome))
    kept = {name: form.get(name, "") for name in ("as", "status", "type", "body", "reason")}
    carried = _chosen(choice) | kept | {name: str(value) for name, value in done.items()}
    carried |= {"until": str(until), "cursor": step["cursor"]}
    return await _page(visit, choice, until, carried, done, outcome=outcome)


async def _page(
    visit: Visit,
    choice: Mapping[str, str],
    until: int,
    carried: Mapping[str, str],
    tallies: Mapping[str, int],
    *,
    further: str = "",
    outcome: str = "",
) -> Response:
    return await visit.page(
        "all-unknown.html",
        "All that match",
        choice=choice,
        chosen=urlencode(_chosen(choice)),
        until=instant(until),
        carried=carried,
        tallies=tallies,
        further=further,
        doing=DONE.get(outcome, ""),
    )


def _finding(form: Mapping[str, str]) -> ResolveRequest:
    """The operator's finding about all of them. Raises `PageRefused`, `oncegate.app.operators.records.records.NotARecord`."""
    outcome, status, body = form.get("as", ""), form.get("status", "").strip(), form.get("body", "").encode()
    if outcome not in DONE:
        raise PageRefused(400, "Choose what became of them. Nothing was changed.")
    if outcome == "release":
        return ResolveRequest(None)
    headers = [("content-type", form["type"])] if body and form.get("type") else []
    kept = _number(status, "status") or None
    return resolution(State(outcome), status=kept, headers=headers, body=body, ttl=None, force=False, attempt=0)


def _result(done: Mapping[str, int], outcome: str) -> str:
    text = f"{done['resolved']} records were {DONE[outcome]}."
    if done["refused"]:
        text += f" {done['refused']} were not: others have changed them meanwhile."
    if done["left"]:
        text += f" {done['left']} stay: they have become unknown since, or don't say since when."
    return text


def _chosen(choice: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in choice.items() if value}


def _tallies(given: Mapping[str, str]) -> dict[str, int]:
    return {name: _number(given.get(name, ""), name) for name in _TALLIES}


def _until(given: Mapping[str, str]) -> int:
    """The instant that what is meant was unknown at (Unix ms); now where none is given, or one that nobody has seen yet."""
    now = now_ms()
    return min(now, _number(given.get("until", ""), "until") or now)


def _number(given: str, name: str) -> int:
    if given and not (given.isascii() and given.isdigit() and len(given) <= _MOST_DIGITS):
        raise PageRefused(400, f"{name} is a number. Nothing was changed.")
    return int(given or 0)


PAGES = (
    ConsolePage("/unknown/all", count),
    ConsolePage("/unknown/all", change, method="POST", changes=True),
)

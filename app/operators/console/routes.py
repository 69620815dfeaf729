"""The routes: under which rules keys are, in words, and how often each was met."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from oncegate.app.operators.console.frame import ConsolePage, Visit
from oncegate.app.operators.console.words import seconds
from oncegate.app.settings.shown.effective import DEFAULT
from oncegate.app.turns import in_pieces

_AT_ONCE: Final = 20
"""Routes that are put in words before others have the loop."""


async def routes(visit: Visit) -> Response:
    """The rules in effect."""
    policy = visit.sources.policy()
    hits: Counter[str] = Counter()
    for (route, _, _), count in (await visit.sources.recent.counts()).items():
        hits[route] += count
    rows = [
        {"route": each, "hits": hits[each["path"]], "rules": list(in_words(each)), "met": each.get("matched", True)}
        async for each in in_pieces(policy["routes"], _AT_ONCE)
    ]
    return await visit.page("routes.html", "Routes", rows=rows, policy=policy, settings=await _settings(visit))


async def _settings(visit: Visit) -> list[dict[str, Any]]:
    """The settings in effect; those that were given come first."""
    found = (await visit.sources.standing.of_settings())["settings"]
    return sorted(found, key=lambda each: each["source"] == DEFAULT)


def in_words(route: Mapping[str, Any]) -> list[str]:
    """The rules of a route, as published, a sentence each."""
    if not route["methods"] or not route["enforced_percent"]:
        return ["Not under enforcement: requests pass as they are."]
    return [_key(route), _caller(route), _retry(route), _expiry(route), *_more(route)]


def _key(route: Mapping[str, Any]) -> str:
    names = " or ".join([route["header"], *route["aliases"]])
    without = "is executed without one"
    if route["required"]:
        without = "is refused"
    elif route["generated_if_missing"]:
        without = "is given one"
    form = f" It has to match {route['key_pattern']}." if route["key_pattern"] else ""
    return f"The key is in {names}; a request without one {without}.{form}"


def _caller(route: Mapping[str, Any]) -> str:
    scope = route["scope"]
    names = [*scope["headers"], *(f"the token's claim {claim}" for claim in scope["claims"])]
    if not names:
        return "All callers share their keys."
    also = " who sends none is refused." if scope["required"] else " who sends none is one caller, too."
    return f"Callers are told apart by {', '.join(names)};{also}"


def _retry(route: Mapping[str, Any]) -> str:
    success = "is refused with 409" if route["on_duplicate"] == "error" else "gets the same response"
    error = "is executed again" if route["on_error"] == "retry" else "gets the same error"
    doubt = "is executed again" if route["on_unknown"] == "retry" else "is refused with 409 until somebody resolves it"
    return f"A retry of what has succeeded {success}; of what has failed, {error}; of what nobody knows, {doubt}."


def _expiry(route: Mapping[str, Any]) -> str:
    expiry = route["expiry"]
    return f"A success is kept for {seconds(expiry['success'])}, an error for {seconds(expiry['error'])}."


def _more(route: Mapping[str, Any]) -> list[str]:
    found = []
    if route["mode"] != "sync":
        found.append(
            "Commands are accepted with 202 and executed later."
            if route["mode"] == "async"
            else "Commands are executed at once, or later where Prefer: respond-async asks for it."
        )
    if route["enforced_percent"] < 100:
        found.append(f"{route['enforced_percent']:g}% of the keys are under enforcement.")
    if route["on_mismatch"] != "reject":
        found.append("A key that comes with another payload is only warned of.")
    if route["wait"]["by_default"]:
        found.append(f"A concurrent duplicate waits {seconds(route['wait']['by_default'])} for the outcome.")
    return found


PAGES = (ConsolePage("/routes", routes, "Routes"),)

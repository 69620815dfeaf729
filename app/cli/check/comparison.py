"""``oncegate check --against``: what changes for callers between two configurations, in words, route by route.

What is compared is what each publishes as its policy, so that a running gateway can be one of both; and, where both are files,
what is not published: limits, time-outs, whatever else differs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson

from oncegate.app.cli.check.findings import ADVICE, FAILED, GOOD, Finding
from oncegate.app.operators.pages.client import GatewayError, RemoteGateway
from oncegate.app.operators.pages.for_callers.policy import published
from oncegate.app.policies import gateway_policies
from oncegate.app.reload.changes import in_effect
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.sources import ConfigurationError, admin_token
from oncegate.app.settings.shown.digest import settings_digest
from oncegate.middleware.rules.paths.path_pattern import PathPattern, parts_of
from oncegate.middleware.rules.settings import DEFAULT_METHODS, IdempotencySettings

Rules = Mapping[str, Any]
"""The members that a policy publishes of one route."""
_UNITS: Final = ((86400, "day"), (3600, "hour"), (60, "minute"))
_ABSENT: Final = object()
"""For a member that a gateway of another version doesn't publish."""
_PLACE: Final = "example"
"""For what a pattern leaves open: nobody's route is called so."""
_OTHERS: Final = f"/{_PLACE}/{_PLACE}/{_PLACE}/{_PLACE}"
PUBLISHED: Final = frozenset((
    *("header", "aliases", "ttl", "error_ttl", "scope", "require_scope", "on_missing_key", "raise_on_duplicate"),
    *("fingerprint", "on_error", "on_unknown", "on_mismatch", "docs_url", "key_pattern", "wait", "max_wait", "enforce"),
))  # fmt: skip
"""Settings of a route that its policy has by other names."""


# -- words ----------------------------------------------------------------------------------------------------------------


def _seconds(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}{'s' if seconds != size else ''}"
    return f"{seconds:g} s"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _switched(on: str, off: str) -> Callable[[Any, Any], str]:
    return lambda _, now: on if now else off


def _lasts(what: str) -> Callable[[Any, Any], str]:
    return lambda was, now: f"{what} is kept for {_seconds(now)} (was {_seconds(was)})"


def _one_of(words: Mapping[str, str]) -> Callable[[Any, Any], str]:
    return lambda was, now: f"{words.get(now, now)} (was: {words.get(was, was)})"


def _form(pattern: str | None) -> str:
    return pattern or "any form"


_MOVED: Final = "; retries of requests from before are executed again"
_MODES: Final = {
    "sync": "a request is executed at once",
    "async": "a request is accepted and executed later (202)",
    "either": "a request is executed later if it prefers so",
}
WORDS: Final[Mapping[tuple[str, ...], Callable[[Any, Any], str]]] = {
    ("mode",): _one_of(_MODES),
    ("required",): _switched(
        "keys become required: a request without one gets 400 key-missing",
        "keys are required no more: a request without one gets no 400",
    ),
    ("generated_if_missing",): _switched(
        "a request without a key is given one", "a request without a key is given none any more"
    ),
    ("header",): lambda was, now: f"the key comes in {now} (was {was})",
    ("aliases",): lambda was, now: f"keys are read from these, too: {_names(now)} (was: {_names(was)})",
    ("key_pattern",): lambda was, now: (
        f"a key of another form than {now} gets 400 key-invalid (was: {_form(was)})"
        if now
        else f"a key may be of any form (was: {_form(was)})"
    ),
    ("wait", "by_default"): lambda was, now: (
        f"a concurrent duplicate waits for the outcome by itself, for {_seconds(now)} (was {_seconds(was)})"
        if now
        else f"a concurrent duplicate gets 409 in-flight at once, unless it asks to wait (it waited for {_seconds(was)})"
    ),
    ("wait", "at_most"): lambda was, now: f"Prefer: wait is heeded up to {_seconds(now)} (was {_seconds(was)})",
    ("enforced_percent",): lambda was, now: (
        f"{now:g} % of the keys are under enforcement (was {was:g} %)"
        + ("" if now > was else "; retries with the other keys are executed again")
    ),
    ("scope", "headers"): lambda was, now: (
        f"callers are told apart by headers: {_names(now)} (was: {_names(was)}){_MOVED}"
    ),
    ("scope", "claims"): lambda was, now: (
        f"callers are told apart by claims: {_names(now)} (was: {_names(was)}){_MOVED}"
    ),
    ("scope", "required"): _switched(
        "a caller without any of the scope's headers gets 401 caller-missing",
        "callers without any of the scope's headers are one caller, no longer 401 caller-missing",
    ),
    ("fingerprint", "body"): _one_of({"raw": "bodies are compared byte by byte", "json": "bodies are compared as JSON"}),
    ("expiry", "success"): _lasts("a success"),
    ("expiry", "error"): _lasts("an error"),
    ("expiry", "unknown"): _lasts("an unknown outcome"),
    ("statuses", "success"): lambda was, now: f"statuses that are a success: {_names(now)} (was: {_names(was)})",
    ("statuses", "error"): lambda was, now: f"statuses that are an error: {_names(now)} (was: {_names(was)})",
    ("statuses", "unknown"): lambda was, now: f"statuses of unknown outcome: {_names(now)} (was: {_names(was)})",
    ("statuses", "not_kept"): lambda was, now: f"statuses of which nothing is kept: {_names(now)} (was: {_names(was)})",
    ("on_error",): _one_of({
        "retry": "after an error a retry is a new attempt",
        "replay": "after an error a retry gets the stored error",
    }),
    ("on_unknown",): _one_of({
        "refuse": "after an unknown outcome a retry gets 409 outcome-unknown",
        "retry": "after an unknown outcome a retry is a new attempt",
    }),
    ("on_mismatch",): _one_of({
        "reject": "another payload under a used key gets 422 key-reused",
        "warn": "another payload under a succeeded key gets the replay",
    }),
    ("on_duplicate",): _one_of({"replay": "a duplicate gets the replay", "error": "a duplicate gets 409 duplicate"}),
    ("documentation",): lambda was, now: f"problems link to {now} (was {was})",
}  # fmt: skip
"""The sentence about each member of a route's policy, by where it is, from what it was and what it is now."""


def _member(rules: Rules, where: Sequence[str]) -> Any:
    found: Any = rules
    for name in where:
        found = found.get(name, _ABSENT) if isinstance(found, Mapping) else _ABSENT
    return found


def changed(was: Rules | None, now: Rules | None) -> list[str]:
    """The changes that a caller of one route notices, a sentence each. ``None``: the request is not under enforcement."""
    if was is None or now is None:
        if now is None:
            return [] if was is None else ["is no longer under enforcement: keys are not looked at"]
        keys = "keys are required" if now["required"] else "a request without a key passes as before"
        return [f"comes under enforcement; {'each gets a key' if now['generated_if_missing'] else keys}"]
    lines = []
    for where, words in WORDS.items():
        before, after = _member(was, where), _member(now, where)
        if before != after and before is not _ABSENT and after is not _ABSENT:
            lines.append(words(before, after))
    rest_before, rest_after = was.get("rest", {}), now.get("rest", {})
    lines += [
        f"{name}: {_value(rest_before[name])} -> {_value(rest_after[name])}"
        for name in rest_after
        if name in rest_before and rest_before[name] != rest_after[name]
    ]
    return lines


# -- which requests -------------------------------------------------------------------------------------------------------


def differences(was: Sequence[Rules], now: Sequence[Rules]) -> list[tuple[str, str]]:
    """The changes for callers between two lists of routes, the last of which is for all other paths: whom it is about, and what.

    Each route stands for its requests by one path that it matches: what counts there before and after may be other routes.
    """
    methods = sorted({*DEFAULT_METHODS, *(method for rules in (*was, *now) for method in rules["methods"])})
    found: list[tuple[str, str]] = []
    for path in dict.fromkeys(rules["path"] for rules in (*now[:-1], *was[:-1])):
        found += _of_path(path, example(path), methods, was, now)
    return found + _of_path("all other paths", _OTHERS, methods, was, now)


def _of_path(
    named: str, path: str, methods: Sequence[str], was: Sequence[Rules], now: Sequence[Rules]
) -> list[tuple[str, str]]:
    by_line: dict[str, list[str]] = {}
    for method in methods:
        before, after = _first(was, method, path), _first(now, method, path)
        if path != _OTHERS and before is was[-1] and after is now[-1]:
            continue  # as on all other paths
        for line in changed(before, after):
            by_line.setdefault(line, []).append(method)
    return [(f"{', '.join(those)} {named}", line) for line, those in by_line.items()]


def _first(routes: Sequence[Rules], method: str, path: str) -> Rules | None:
    """The rules that count for a request, as `oncegate.middleware.rules.policies.Policies` finds them."""
    *own, default = routes
    for rules in own:
        if (not rules["methods"] or method in rules["methods"]) and PathPattern(rules["path"]).matches(path):
            return rules if rules["methods"] else None
    return default if method in default["methods"] else None


def example(pattern: str) -> str:
    """A path that ``pattern`` matches."""
    return f"{_PLACE}/{_PLACE}".join(_PLACE.join(part) for part in parts_of(pattern))  # a run is no segment, as a rule


# -- two configurations ---------------------------------------------------------------------------------------------------


def compared_with_settings(was: GatewaySettings, now: GatewaySettings) -> list[Finding]:
    """The findings on ``now``, where ``was`` is what runs."""
    found = [Finding(whom, ADVICE, line) for whom, line in differences(_rules(was), _rules(now))]
    found = found or [Finding("callers", GOOD, "nothing changes for them")]
    others = [
        name
        for name in GatewaySettings.model_fields
        if name not in ("idempotency", "routes", "worker") and getattr(was, name) != getattr(now, name)
    ]
    found += [Finding("settings", ADVICE, _setting(name, was, now)) for name in others]
    try:
        _, wait = in_effect(was, now)
    except ConfigurationError as error:
        return [*found, Finding("reload", FAILED, str(error))]
    if wait:
        return [*found, Finding("reload", ADVICE, f"{', '.join(wait)}: in effect after a restart alone")]
    return [*found, Finding("reload", GOOD, f"takes it: {settings_digest(was)} -> {settings_digest(now)}")]


async def compared_with_gateway(url: str, now: GatewaySettings) -> list[Finding]:
    """The findings on ``now``, where the gateway at ``url`` is what runs."""
    try:
        policy = await RemoteGateway(url, admin_token() or "").policy()
    except (GatewayError, ValueError) as error:
        return [Finding("gateway", FAILED, str(error).replace("--gateway", "--against"))]
    found = [Finding(whom, ADVICE, line) for whom, line in differences(policy["routes"], _rules(now))]
    found = found or [Finding("callers", GOOD, "nothing that is published changes for them")]
    running, digest = policy.get("configuration"), settings_digest(now)
    if running == digest:
        return [*found, Finding("gateway", GOOD, f"runs by this configuration, {digest}")]
    text = f"runs by {running}, this is {digest}; limits and time-outs are not published: compare its file for those"
    return [*found, Finding("gateway", GOOD, text)]


def _rules(settings: GatewaySettings) -> list[Rules]:
    """The published policy of ``settings``, and beside it the rest of each route's settings."""
    routes = gateway_policies(settings).with_methods()
    policy = orjson.loads(published(routes, settings_digest(settings), lambda _: True))
    names = [name for name in IdempotencySettings.model_fields if name not in PUBLISHED]
    return [
        {**rules, "rest": {name: getattr(route.settings, name) for name in names}}
        for rules, (route, _) in zip(policy["routes"], routes, strict=True)
    ]


def _setting(name: str, was: GatewaySettings, now: GatewaySettings) -> str:
    """A setting of the gateway that differs; what may hold a credential is only named."""
    if GatewaySettings.model_fields[name].repr and not name.endswith("_file") and name not in ("cors", "jwt"):
        return f"{name}: {_value(getattr(was, name))} -> {_value(getattr(now, name))}"
    return f"{name} differs"

"""Calls about keys, callers, preferences, fingerprints and rules, for `tests.builds.driver`."""

from dataclasses import fields
from typing import Any

from oncegate.middleware.http import asgi, identity
from oncegate.middleware.rules import policies, policy, prefer
from oncegate.middleware.rules.keys import key
from oncegate.middleware.rules.keys.key import fingerprint
from oncegate.middleware.rules.paths import readings
from oncegate.middleware.rules.settings import IdempotencySettings, Route

Lines = list[tuple[bytes, bytes]]


def digest(method: str, path: bytes, query: bytes, body: bytes, as_json: bool) -> bytes:
    """A fingerprint."""
    return fingerprint(method, path, query, body, as_json=as_json)


def names(function: str, *arguments: Any) -> Any:
    """Anything of `oncegate.middleware.rules.keys.key`."""
    return getattr(key, function)(*arguments)


def head(headers: Lines, settings: dict[str, Any]) -> list[Any]:
    """All that is read of a request's head."""
    rules = policy.compile_policy(IdempotencySettings(**settings))
    given = key.pick(headers, rules.wanted)
    values: list[Any] = [given]
    for call in (
        lambda: _found(given, rules),
        lambda: key.scope_parts(given, rules.scope_names) or identity.nameless_scope(given, rules),
        lambda: prefer.wanted_wait(given, rules),
        lambda: prefer.wants_async(given),
        lambda: prefer.wants_error(given[policy.RAISE_HEADER]),
        lambda: key.record_key("n", "k", key.scope_parts(given, rules.scope_names)),
    ):
        try:
            values.append(call())
        except Exception as error:
            values.append(f"{type(error).__name__}: {error}")
    return values


def _found(given: key.Fields, rules: policy.Policy) -> Any:
    found = identity.request_key(given, rules)
    if found is not None and found[2]:
        return len(found[0]), len(found[1])  # made here: random
    return found


async def body(chunks: list[Any], declared: list[bytes], limit: int) -> Any:
    """A body that arrives; ``None`` for a chunk: the client leaves."""
    messages = [
        {"type": "http.disconnect"} if chunk is None else {"type": "http.request", "body": chunk, "more_body": True}
        for chunk in chunks
    ]
    messages.append({"type": "http.request"})

    async def receive() -> Any:
        return messages.pop(0)

    given = {b"content-length": declared} if declared else {}
    return await asgi.read_body(receive, given, limit, 30.0), len(messages)


def rules(settings: dict[str, Any], routes: list[dict[str, Any]], requests: list[tuple[str, str]]) -> Any:
    """What requests meet, and what the rules say."""
    every = policies.Policies(IdempotencySettings(**settings), [Route(**route) for route in routes])
    met = [every.match(*each) for each in requests]
    return [_shown(found) for found in met], [_shown(found) for found in every.all()], every.with_methods() != []


def _shown(found: policy.Policy | None) -> Any:
    if found is None:
        return None
    names = [field.name for field in fields(policy.Policy)]
    shown = {name: getattr(found, name) for name in names if name not in ("settings", "submission")}
    for name, value in shown.items():
        if isinstance(value, frozenset):
            shown[name] = sorted(value)
    return (
        shown,
        found.settings.model_dump(),
        _shown(found.submission),
        [found.state(status) for status in range(-1, 1000)],
    )


def paths(path: str) -> tuple[str, ...]:
    """How a path is read."""
    return readings.normalise(path), readings.folded(path), *readings.readings(path, path.encode())


def kinds(status: int, overrides: dict[int, Any]) -> str:
    """What a status says."""
    return policy.kind(status, overrides)

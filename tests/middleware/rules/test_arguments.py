"""What users give is looked at where it is given: an error at construction names the argument, and says what to write.

Rules of docs/contract.md: R12.1, R12.9.
"""

from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import ValidationError
from redis.asyncio import Redis

from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.open import open_cache
from oncegate.cache.redis.store import RedisCache
from oncegate.client import IdempotentTransport
from oncegate.fastapi import document
from oncegate.faststream import SubscriptionMiddleware
from oncegate.middleware.admission.observe import Watch
from oncegate.middleware.calls.processor import CommandProcessor
from oncegate.middleware.calls.sync import SyncCommandProcessor
from oncegate.middleware.consumers.delivery import SubscriptionSettings
from oncegate.middleware.consumers.subscription import Subscription
from oncegate.middleware.http.middleware import IdempotencyMiddleware
from oncegate.middleware.rules.settings import IdempotencySettings, Route
from oncegate.middleware.tokens.settings import JwtSettings
from testing.asgi_client import Client
from tests.middleware.door import Answering


def middleware(**given: Any) -> Any:
    return IdempotencyMiddleware(Answering(201), **({"cache": MemoryCache()} | given))


def processor(**given: Any) -> Any:
    options: dict[str, Any] = {"execute": str, "name": "n", "cache": MemoryCache()}
    return CommandProcessor(**(options | given))


def subscription(**given: Any) -> Any:
    return Subscription("billing", **({"cache": MemoryCache()} | given))


@pytest.mark.parametrize(
    ("kind", "given", "named"),
    [
        (IdempotencySettings, {"leese": 3}, "lease"),
        (Route, {"path": "/x", "on_unknow": "retry"}, "on_unknown"),
        (SubscriptionSettings, {"attempt_timout": 3}, "attempt_timeout"),
        (JwtSettings, {"jwks": "f", "issuers": "i"}, "issuer"),
    ],
)
def test_the_error_about_an_unknown_setting_names_the_nearest(kind: Any, given: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=rf"unknown setting, did you mean {named}\?"):
        kind(**given)


DOORS = [middleware, processor, subscription]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("cache", "named"),
    [
        (RedisCache, "the class RedisCache"),
        (Redis(), "Redis"),
        (None, "NoneType"),
        (b"redis://localhost", "bytes"),
        ({}, "dict"),
    ],
)
def test_what_is_no_cache_is_refused(door: Any, cache: Any, named: str) -> None:
    with pytest.raises(TypeError, match=rf"^cache is .*{named}.*redis://"):
        door(cache=cache)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "url", ["localhost:6379", "http://u:hunter2@h", "memory://hunter2", "mysql://hunter2", "sqlite://hunter2", ""]
)
def test_a_url_of_no_cache_is_refused_and_not_repeated(door: Any, url: str) -> None:
    with pytest.raises(ValueError, match=r"^cache") as refused:
        door(cache=url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("settings", {"ttl": 60}),
        ("settings", IdempotencySettings),
        ("settings", Route(path="/x")),
        ("namespace", None),
        ("namespace", 7),
    ],
)
def test_each_door_names_what_is_of_another_kind(door: Any, argument: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{argument} is (a|the class) \w+: give "):
        door(**{argument: value})


@pytest.mark.parametrize(
    ("argument", "value", "named"),
    [
        ("routes", ["/x"], r"routes\[0\] is a str: give Route"),
        ("routes", [Route(path="/x"), {"path": "/y"}], r"routes\[1\] is a dict: give Route"),
        ("routes", Route(path="/x"), "routes is a Route: give a list"),
        ("routes", "/x", "routes is a str: give a list"),
        ("observe", "metrics", "observe is a str"),
        ("watch", Watch, "watch is the class Watch"),
        ("watch", print, "watch is a builtin"),
        ("submit", "app", "submit is a str"),
    ],
)
def test_the_middleware_names_what_is_of_another_kind(argument: str, value: Any, named: str) -> None:
    with pytest.raises(TypeError, match=f"^{named}"):
        middleware(**{argument: value})


def test_other_doors_name_what_is_of_another_kind() -> None:
    with pytest.raises(TypeError, match=r"^execute is a str: give a function"):
        processor(execute="pay")
    with pytest.raises(TypeError, match=r"^execute is a NoneType: give a function"):
        processor(execute=None)
    with pytest.raises(TypeError, match=r"^app is a str: give an ASGI app"):
        IdempotencyMiddleware("app", cache=MemoryCache())  # type: ignore[arg-type]  # wrong, and to be seen
    with pytest.raises(TypeError, match=r"^processor is a function: give a CommandProcessor"):
        SyncCommandProcessor(processor)  # type: ignore[arg-type]  # wrong, and to be seen
    with pytest.raises(TypeError, match=r"^aliases is a str: give a list"):
        subscription(aliases="former")
    with pytest.raises(TypeError, match=r"^watch is the class Watch: give an object"):
        subscription(watch=Watch)


@pytest.mark.parametrize("door", DOORS)
def test_a_url_is_a_cache(door: Any) -> None:
    door(cache="memory://")
    door(cache="redis://127.0.0.1:1")
    door(cache="redis+sentinel://127.0.0.1:1/mymaster")


def test_what_opens_a_cache_names_what_is_of_another_kind() -> None:
    with pytest.raises(TypeError, match=r"^url is a Redis"):
        open_cache(Redis())  # type: ignore[arg-type]  # wrong, and to be seen
    for given in ("redis://127.0.0.1", Redis()):
        with pytest.raises(TypeError, match=r"^client is a \w+: RedisCache.from_url"):
            RedisCache(given)  # type: ignore[arg-type]  # wrong, and to be seen


def test_a_consumer_s_middleware_names_what_is_of_another_kind() -> None:
    for given, named in [
        ({"subscription": "billing"}, "subscription is a str"),
        ({"describe": "key"}, "describe is a str"),
        ({"dead_letter": "payments.dead"}, "dead_letter is a str"),
    ]:
        options: dict[str, Any] = {"subscription": subscription()} | given
        with pytest.raises(TypeError, match=f"^{named}: give"):
            SubscriptionMiddleware(**options)


def test_the_client_s_transport_names_what_is_of_another_kind() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"budget": 3}, "budget is a int"),
        ({"make_key": "k"}, "make_key is a str"),
    ]
    for options, named in cases:
        with pytest.raises(TypeError, match=f"^{named}: give"):
            IdempotentTransport(**options)


def test_document_names_what_is_of_another_kind() -> None:
    app: Any = FastAPI()
    with pytest.raises(TypeError, match=r"^settings is a dict"):
        document(app, settings={"ttl": 1})  # type: ignore[arg-type]  # wrong, and to be seen
    with pytest.raises(TypeError, match=r"^routes\[0\] is a str"):
        document(app, routes=["/x"])  # type: ignore[list-item]  # wrong, and to be seen


def test_a_url_opens_what_it_names() -> None:
    assert isinstance(open_cache("memory://"), MemoryCache)
    for url in ("redis://127.0.0.1", "REDISS://127.0.0.1", "unix:///run/redis.sock", "redis+cluster://127.0.0.1:1"):
        assert isinstance(open_cache(url), RedisCache)


async def test_through_a_url_commands_are_executed_once_and_the_shutdown_closes_what_was_opened(redis_url: str) -> None:
    app = Answering(201)
    there = IdempotencyMiddleware(app, cache=redis_url, namespace=f"url-{id(app)}")
    for _ in range(2):
        call = Client("POST", b"/", [(b"idempotency-key", b"k")], pieces=(b"",))
        await call.call(there)
        assert call.status == 201
    assert app.calls == 1
    cache: Any = there.admissions.in_flight.shared.cache
    assert cache.client.routes
    messages = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> dict[str, str]:
        return {"type": next(messages)}

    async def lifespan(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await receive()

    there.app = lifespan
    await there({"type": "lifespan"}, receive, lambda message: None)  # type: ignore[arg-type, return-value]  # sends nothing
    assert not cache.client.routes

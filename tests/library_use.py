"""Code as users write it, for type checkers: what is wrong here, and no ``type: ignore`` says so, is a fault of ours.

`tests/test_user_types.py` has mypy and pyright read it, without pydantic's plugin. An ignore without an error is an error, too.
"""

from dataclasses import dataclass
from typing import Any, assert_type

from sqlalchemy import Connection, create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from oncegate import (
    Begun,
    Cache,
    Caller,
    Codec,
    CommandProcessor,
    Delivery,
    IdempotencyMiddleware,
    IdempotencySettings,
    MemoryCache,
    Observation,
    Observe,
    Once,
    OncegateError,
    Redact,
    RedisCache,
    Route,
    StoredResponse,
    Subscription,
    SubscriptionSettings,
    SyncCommandProcessor,
    Watch,
    idempotent,
)
from oncegate.prometheus import MiddlewareMetrics
from oncegate.sql import AsyncEntry, Entry, Inbox


async def app(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI app."""


async def pay(amount: int) -> str:
    """A command's executor in a coroutine."""
    return f"paid {amount}"


def pay_in_thread(amount: int) -> str:
    """The same without one."""
    return f"paid {amount}"


def observe(observation: Observation) -> None:
    """Is told of each answer."""
    assert_type(observation.seconds, float)


def logged_in(scope: dict[str, Any]) -> int | None:
    """Whose request it is."""
    user: int | None = scope["user"]
    return user


async def logged_in_later(scope: dict[str, Any]) -> int:
    """A wrong one: it would be awaited."""
    return 1


def without_body(scope: dict[str, Any], response: StoredResponse) -> StoredResponse | None:
    """What is kept of a response."""
    assert_type(response.status, int)
    return response._replace(body=None) if scope["path"] == "/cards" else None


class Counting(Watch):
    """Is told of attempts."""

    def attempt_began(self, route: str) -> None:
        """One more."""


class Plain:
    """A codec of one's own."""

    def dump(self, result: str) -> bytes:
        """As UTF-8."""
        return result.encode()

    def load(self, data: bytes) -> str:
        """From UTF-8."""
        return data.decode()


settings = IdempotencySettings(
    ttl=3600,
    on_missing_key="reject",
    aliases=["X-Idempotency-Key"],
    scope=("header:Authorization", "header:X-Tenant"),
    on_error="replay",
)
IdempotencySettings(tttl=1)  # type: ignore[call-arg]  # wrong, and to be seen
IdempotencySettings(ttl="a day")  # type: ignore[arg-type]  # wrong, and to be seen
IdempotencySettings(on_error="again")  # type: ignore[arg-type]  # wrong, and to be seen
assert_type(settings.ttl, float)

routes = [
    Route(path="/payments", on_missing_key="reject", status={402: "success"}, ttl=60, scope=["header:X-Tenant"]),
    Route(path="/reports", mode="async", stream="reports", methods=["POST"]),
    Route(path="*", methods=[]),
]
Route(path="/payments", on_missing_keys="reject")  # type: ignore[call-arg]  # wrong, and to be seen
Route(path="/payments", on_missing_key="yes, please")  # type: ignore[arg-type]  # wrong, and to be seen
Route(on_missing_key="reject")  # type: ignore[call-arg]  # wrong, and to be seen

cache: Cache = MemoryCache()
shared: Cache = RedisCache.from_url("redis://127.0.0.1")
codec: Codec[str] = Plain()
observer: Observe = observe
IdempotencyMiddleware(app, cache=cache, settings=settings, routes=routes, observe=observe, watch=Counting())
IdempotencyMiddleware(app, cache="redis://127.0.0.1")
metrics = MiddlewareMetrics(routes=routes)
IdempotencyMiddleware(app, cache=cache, routes=routes, observe=metrics.observed, watch=metrics)
MiddlewareMetrics(routes=["/payments"])  # type: ignore[list-item]  # wrong, and to be seen
caller: Caller = logged_in
redact: Redact = without_body
IdempotencyMiddleware(app, cache=cache, caller=logged_in, redact=without_body)
IdempotencyMiddleware(app, cache=cache, caller=lambda scope: scope["user"].id, redact=lambda scope, response: None)
IdempotencyMiddleware(app, cache=cache, caller=logged_in_later)  # type: ignore[arg-type]  # wrong, and to be seen
IdempotencyMiddleware(app, cache=cache, redact=logged_in)  # type: ignore[arg-type]  # wrong, and to be seen
IdempotencyMiddleware(app, cache=RedisCache)  # type: ignore[arg-type]  # wrong, and to be seen
IdempotencyMiddleware(app, cache=cache, settings={"ttl": 1})  # type: ignore[arg-type]  # wrong, and to be seen
IdempotencyMiddleware(app, cache=cache, routes=["/payments"])  # type: ignore[list-item]  # wrong, and to be seen

subscription = Subscription("billing", cache="memory://", settings=SubscriptionSettings(max_attempts=3, lease=10))
SubscriptionSettings(attempts=3)  # type: ignore[call-arg]  # wrong, and to be seen


def describe(message: str) -> Delivery:
    """What a message says of its command."""
    return Delivery(key=message, payload=b"")


@subscription.handler(describe)
async def book(message: str, again: bool = False) -> None:
    """A consumer's handler."""


@dataclass
class Order:
    """What is paid for."""

    id: str
    total: int


@idempotent(key=lambda order: order.id, cache="memory://", ttl=3600, settings=settings)
def charge(order: Order, currency: str = "EUR") -> str:
    """A function that keeps its signature."""
    return currency


@idempotent(key=lambda order: order.id, payload=lambda order: order.total, cache=cache, name="book", wait=5)
async def book_order(context: object, order: Order, *more: int) -> list[int]:
    """The same of a coroutine function."""
    return [*more]


class Shop:
    """Has methods."""

    @idempotent(key=lambda order: order.id, caller=lambda self: str(self), cache=cache)
    async def ship(self, order: Order) -> int:
        """A method that keeps its signature."""
        return order.total


def one_of_many(order: Order) -> str | None:
    """A key that may be missing."""
    return order.id or None


idempotent(key=lambda order: order.id)  # type: ignore[call-arg]  # wrong, and to be seen
idempotent(key="order.id", cache=cache)  # type: ignore[arg-type]  # wrong, and to be seen
idempotent(key=one_of_many, cache=cache)  # type: ignore[arg-type]  # wrong, and to be seen


async def use_decorated() -> None:
    """What calls give back."""
    order = Order("a", 5)
    assert_type(charge(order), str)
    assert_type(charge(order, currency="USD"), str)
    assert_type(await book_order(None, order, 1, 2), list[int])
    assert_type(await Shop().ship(order), int)
    charge("a")  # type: ignore[arg-type]  # wrong, and to be seen
    charge(order, amount=5)  # type: ignore[call-arg]  # wrong, and to be seen
    await Shop().ship()  # type: ignore[call-arg]  # wrong, and to be seen
    assert_type(subscription.once(Delivery("k")), Once)


async def use() -> None:
    """What calls give back."""
    processor = CommandProcessor(pay, name="pay", cache=cache)
    assert_type(processor, CommandProcessor[int, str])
    assert_type(await processor.process(1, idempotency_key="a"), str)
    assert_type(await CommandProcessor(pay_in_thread, name="pay", cache="memory://", codec=Plain()).process(1), str)
    await processor.process("1")  # type: ignore[arg-type]  # wrong, and to be seen
    with SyncCommandProcessor(processor) as of_threads:
        assert_type(of_threads.process(1, wait=2), str)
    assert_type(await book("m", again=True), Begun)
    await book(1)  # type: ignore[arg-type]  # wrong, and to be seen
    try:
        await processor.process(1)
    except OncegateError as error:
        assert_type(error, OncegateError)


billing = Inbox("billing", aliases=["payments"], on_mismatch="warn")
Inbox("billing", on_mismatch="ignore")  # type: ignore[arg-type]  # wrong, and to be seen
sync_sessions = sessionmaker(create_engine("sqlite://"))
async_sessions = async_sessionmaker(create_async_engine("sqlite+aiosqlite://"))


def mark(session: Session, connection: Connection) -> None:
    """Without asyncio."""
    assert_type(billing.first(session, "a"), Entry)
    assert_type(billing.first(connection, 7, payload={"amount": 5}), Entry)
    billing.first(session, 1.5)  # type: ignore[call-overload]  # wrong, and to be seen
    billing.first(sync_sessions, "a")  # type: ignore[call-overload]  # wrong, and to be seen


async def mark_later(session: AsyncSession, connection: AsyncConnection) -> None:
    """The same call, awaited."""
    entry = await billing.first(session, "a")
    assert_type(entry, AsyncEntry)
    assert_type(entry.result, Any)
    await entry.keep({"paid": 5})
    assert_type(await billing.first(connection, "a"), AsyncEntry)


@billing.transaction(sync_sessions)
def pay_order(order: Order, session: Session) -> int:
    """A handler in a thread."""
    return order.total


@billing.transaction(async_sessions)
async def pay_order_later(order: Order, session: AsyncSession, again: bool) -> int:
    """The same as a coroutine, with one argument more."""
    return order.total


billing.transaction(async_sessions)(pay)  # type: ignore[arg-type]  # wrong, and to be seen


async def use_transactions(order: Order) -> None:
    """What they are called with."""
    pay_order(order)
    await pay_order_later(order, True)
    pay_order(5)  # type: ignore[arg-type]  # wrong, and to be seen

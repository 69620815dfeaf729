"""`idempotent`: a decorated function is executed once per key, by the rules of `CommandProcessor`."""

import asyncio
import inspect
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from oncegate import (
    CallerMissing,
    CommandFailedError,
    DuplicateCommandError,
    IdempotencySettings,
    InFlightError,
    KeyInvalid,
    KeyMissing,
    KeyReusedError,
    NotProcessed,
    OutcomeUnknown,
    OutcomeUnknownError,
    idempotent,
)
from oncegate.cache.base import Cache

PATIENCE = 30.0


@dataclass
class Order:
    id: str
    total: Decimal = Decimal(5)


class Receipt(BaseModel):
    number: int


class Till:
    """What the decorated functions do: they count, and do what they are told instead."""

    def __init__(self) -> None:
        self.paid: list[Any] = []
        self.instead: list[BaseException] = []
        self.began = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def pay(self, what: Any) -> int:
        self.paid.append(what)
        self.began.set()
        assert self.go.wait(PATIENCE)
        if self.instead:
            raise self.instead.pop(0)
        return len(self.paid)


@pytest.fixture
def till() -> Till:
    return Till()


@pytest.fixture
def options(cache: Cache, namespace: str) -> dict[str, Any]:
    return {"cache": cache, "namespace": namespace}


Call = Callable[..., Any]
Charge = Callable[..., Call]


@pytest.fixture(params=["async", "plain"])
async def charge(request: pytest.FixtureRequest, till: Till, options: dict[str, Any]) -> AsyncIterator[Charge]:
    """Decorates ``charge``, a coroutine function or a plain one; to be awaited either way."""

    def decorated(**more: Any) -> Call:
        decorate = idempotent(**{"key": lambda order: order.id, **options, **more})

        @decorate
        async def charge(order: Order, currency: str = "EUR", *, note: Any = None) -> Receipt:
            return Receipt(number=await asyncio.to_thread(till.pay, order))

        @decorate
        def charge_plainly(order: Order, currency: str = "EUR", *, note: Any = None) -> Receipt:
            return Receipt(number=till.pay(order))

        async def in_thread(*args: Any, **kwargs: Any) -> Receipt:
            return await asyncio.to_thread(charge_plainly, *args, **kwargs)

        return charge if request.param == "async" else in_thread

    yield decorated
    till.go.set()


# -- what a second call gets


async def test_a_second_call_gets_what_the_first_one_returned(charge: Charge, till: Till) -> None:
    call = charge()
    first = await call(Order("a"))
    assert await call(order=Order("a"), currency="EUR") == first == Receipt(number=1)
    assert await call(Order("b")) == Receipt(number=2)
    assert [order.id for order in till.paid] == ["a", "b"]


async def test_other_arguments_under_a_used_key_are_refused(charge: Charge, till: Till) -> None:
    call = charge()
    await call(Order("a"))
    for other in (call(Order("a", Decimal(6))), call(Order("a"), "USD"), call(Order("a"), note=1)):
        with pytest.raises(KeyReusedError):
            await other
    assert len(till.paid) == 1


async def test_a_duplicate_is_told_of_with_the_original_result_where_that_is_wanted(charge: Charge) -> None:
    call = charge(raise_on_duplicate=True)
    await call(Order("a"))
    with pytest.raises(DuplicateCommandError) as raised:
        await call(Order("a"))
    assert raised.value.original_result == Receipt(number=1)


async def test_of_many_concurrent_calls_one_executes_and_the_others_are_told_when_to_come_again(
    charge: Charge, till: Till
) -> None:
    call, waiting = charge(), charge(wait=PATIENCE)
    till.go.clear()
    first = asyncio.ensure_future(call(Order("a")))
    await asyncio.to_thread(till.began.wait, PATIENCE)
    others = await asyncio.gather(*(call(Order("a")) for _ in range(5)), return_exceptions=True)
    for error in others:
        assert isinstance(error, InFlightError)
        assert (error.retryable, error.retry_after) == (True, 1)
    later = [asyncio.ensure_future(waiting(Order("a"))) for _ in range(5)]
    till.go.set()
    assert await asyncio.gather(first, *later) == [Receipt(number=1)] * 6
    assert len(till.paid) == 1


async def test_a_failure_is_raised_and_retried_by_default(charge: Charge, till: Till) -> None:
    call = charge()
    till.instead = [ValueError("declined")]
    with pytest.raises(ValueError, match="declined"):
        await call(Order("a"))
    assert await call(Order("a")) == Receipt(number=2)


async def test_a_failure_is_kept_where_the_settings_say_so(charge: Charge, till: Till) -> None:
    call = charge(settings=IdempotencySettings(on_error="replay"), error_ttl=3600)
    till.instead = [ValueError("declined")]
    with pytest.raises(ValueError, match="declined"):
        await call(Order("a"))
    with pytest.raises(CommandFailedError, match="declined"):
        await call(Order("a"))
    assert len(till.paid) == 1


async def test_what_was_not_processed_leaves_the_key_free_and_what_nobody_knows_does_not(
    charge: Charge, till: Till
) -> None:
    call = charge()
    till.instead = [NotProcessed("no connection"), OutcomeUnknown("the line went dead")]
    with pytest.raises(NotProcessed):
        await call(Order("a"))
    with pytest.raises(OutcomeUnknown):
        await call(Order("a"))
    with pytest.raises(OutcomeUnknownError):
        await call(Order("a"))
    assert len(till.paid) == 2


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_is_raised_and_of_unknown_outcome(
    till: Till, namespace: str, redis_url: str, kind: type[BaseException]
) -> None:
    @idempotent(key=lambda order: order.id, cache=redis_url, namespace=namespace)
    def charge(order: Order) -> int:
        return till.pay(order)

    till.instead = [kind()]
    with pytest.raises(kind):
        charge(Order("a"))
    with pytest.raises(OutcomeUnknownError):
        charge(Order("a"))
    assert charge(Order("b")) == 2


async def test_a_call_that_is_cancelled_goes_on_and_its_result_is_kept(till: Till, options: dict[str, Any]) -> None:
    @idempotent(key=lambda order: order.id, wait=PATIENCE, **options)
    async def charge(order: Order) -> int:
        return await asyncio.to_thread(till.pay, order)

    till.go.clear()
    call = asyncio.ensure_future(charge(Order("a")))
    await asyncio.to_thread(till.began.wait, PATIENCE)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    till.go.set()
    assert await charge(Order("a")) == 1


async def test_a_plain_function_out_of_time_is_of_unknown_outcome_when_it_returns(
    till: Till, options: dict[str, Any]
) -> None:
    rules = IdempotencySettings(attempt_timeout=0.1, response_timeout=0.1)

    @idempotent(key=lambda order: order.id, settings=rules, **options)
    def charge(order: Order) -> int:
        return till.pay(order)

    till.go.clear()
    call = asyncio.ensure_future(asyncio.to_thread(charge, Order("a")))
    await asyncio.to_thread(till.began.wait, PATIENCE)
    async with asyncio.timeout(PATIENCE):
        while not isinstance(await _raised(charge, Order("a")), OutcomeUnknownError):
            pass
    assert not call.done()
    till.go.set()
    with pytest.raises(OutcomeUnknownError, match="ran out of time"):
        await call


async def _raised(call: Call, *args: Any) -> BaseException | None:
    try:
        await asyncio.to_thread(call, *args)
    except Exception as error:
        return error
    return None


# -- where a plain function runs


def test_a_plain_function_runs_in_the_thread_that_calls_it(options: dict[str, Any]) -> None:
    """A connection of sqlite3's is for the thread that has opened it, as a transaction of Django's is."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE payments (id TEXT)")

    @idempotent(key=lambda order: order.id, **options)
    def charge(order: Order) -> int | None:
        return database.execute("INSERT INTO payments VALUES (?)", (order.id,)).lastrowid

    with database:
        assert [charge(Order("a")), charge(Order("a")), charge(Order("b"))] == [1, 1, 2]
    database.close()


def test_of_many_threads_one_executes(till: Till, options: dict[str, Any]) -> None:
    @idempotent(key=lambda order: order.id, wait=PATIENCE, **options)
    def charge(order: Order) -> int:
        return till.pay(order)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(charge, [Order("a")] * 32)) == [1] * 32
    assert len(till.paid) == 1


def test_a_plain_function_may_call_another_and_be_called_in_an_event_loop(till: Till, options: dict[str, Any]) -> None:
    @idempotent(key=lambda order: order.id, **options)
    def charge(order: Order) -> int:
        return till.pay(order)

    @idempotent(key=lambda order: order.id, **options)
    def order_and_charge(order: Order) -> int:
        return charge(order)

    async def main() -> int:
        return order_and_charge(Order("a"))

    assert [asyncio.run(main()), order_and_charge(Order("a")), charge(Order("a"))] == [1, 1, 1]


# -- keys


async def test_each_function_has_keys_of_its_own(till: Till, options: dict[str, Any]) -> None:
    @idempotent(key=lambda order: order.id, **options)
    async def charge(order: Order) -> int:
        return till.pay(order)

    @idempotent(key=lambda order: order.id, **options)
    async def refund(order: Order) -> int:
        return -till.pay(order)

    assert [await charge(Order("a")), await refund(Order("a")), await charge(Order("a"))] == [1, -2, 1]


async def test_a_name_is_kept_when_the_function_moves(till: Till, options: dict[str, Any]) -> None:
    def charge(order: Order) -> int:
        return till.pay(order)

    def debit(order: Order) -> int:
        return till.pay(order)

    functions = [idempotent(key=lambda order: order.id, name="charge", **options)(each) for each in (charge, debit)]
    assert [each(Order("a")) for each in functions] == [1, 1]


async def test_callers_do_not_meet_each_others_results(till: Till, options: dict[str, Any]) -> None:
    @idempotent(key=lambda number: number, caller=lambda tenant: tenant, payload=lambda number: number, **options)
    async def charge(tenant: str | None, number: int) -> int:
        return till.pay(number)

    assert [await charge("a", 1), await charge("b", 1), await charge("a", 1)] == [1, 2, 1]
    for nobody in (None, ""):
        with pytest.raises(CallerMissing, match=r"charge\(\) does not know its caller"):
            await charge(nobody, 1)
    assert len(till.paid) == 2


@pytest.mark.parametrize("key", ["k", b"k", 7, UUID(int=7)])
async def test_a_key_may_be_what_databases_have(till: Till, options: dict[str, Any], key: Any) -> None:
    @idempotent(key=lambda key: key, **options)
    async def charge(key: Any) -> int:
        return till.pay(key)

    assert [await charge(key), await charge(key)] == [1, 1]


@pytest.mark.parametrize(
    ("key", "error", "text"),
    [
        (None, KeyMissing, r"charge\(\) has no idempotency key in this call: key gave None"),
        ("", KeyInvalid, "0 characters"),
        ("k" * 256, KeyInvalid, "256 characters"),
        (b"\xff", KeyInvalid, "no UTF-8"),
        (True, KeyInvalid, "of type bool"),
        (1.5, KeyInvalid, "of type float"),
    ],
)
async def test_what_is_no_key_is_refused_before_any_effect(
    till: Till, options: dict[str, Any], key: Any, error: type[Exception], text: str
) -> None:
    @idempotent(key=lambda key: key, **options)
    async def charge(key: Any) -> int:
        return till.pay(key)

    @idempotent(key=lambda key: key, **options)
    def plainly_charge(key: Any) -> int:
        return till.pay(key)

    with pytest.raises(error, match=text):
        await charge(key)
    with pytest.raises(error, match=text):
        plainly_charge(key)
    assert not till.paid


async def test_what_key_raises_is_raised_before_any_effect(till: Till, options: dict[str, Any]) -> None:
    @idempotent(key=lambda order: order.id, **options)
    async def charge(order: Any) -> int:
        return till.pay(order)

    with pytest.raises(AttributeError, match="id"):
        await charge("a")
    with pytest.raises(TypeError, match=r"charge\(\): missing a required argument: 'order'"):
        await charge()  # type: ignore[call-arg]  # to be seen
    assert not till.paid


# -- what counts of the arguments


async def test_what_has_no_json_form_is_refused_and_told_what_to_do(till: Till, options: dict[str, Any]) -> None:
    @idempotent(key=lambda order: order.id, name="charge", **options)
    async def charge(context: object, order: Order) -> int:
        return till.pay(order)

    with pytest.raises(TypeError, match=r"a command holds a object, .*: say by payload= what of charge\(\) counts"):
        await charge(object(), Order("a"))
    assert not till.paid


async def test_only_the_payload_counts(till: Till, options: dict[str, Any]) -> None:
    @idempotent(key=lambda order: order.id, payload=lambda order, *, currency: [order, currency], **options)
    async def charge(context: object, order: Order, *, currency: str = "EUR", **more: Any) -> int:
        return till.pay(order)

    assert await charge(object(), Order("a"), trace=object()) == 1
    assert await charge(object(), order=Order("a"), currency="EUR") == 1
    with pytest.raises(KeyReusedError):
        await charge(object(), Order("a"), currency="USD")


async def test_a_method_is_compared_by_its_arguments_and_may_name_its_object(
    till: Till, options: dict[str, Any]
) -> None:
    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

        @idempotent(key=lambda order: order.id, caller=lambda self: self.name, **options)
        async def charge(self, order: Order) -> int:
            return till.pay(order)

        @staticmethod
        @idempotent(key=lambda order: order.id, **options)
        def refund(order: Order) -> int:
            return till.pay(order)

        @classmethod
        @idempotent(key=lambda order: order.id, **options)
        def book(cls, order: Order) -> int:
            return till.pay(order)

    shops = Shop("a"), Shop("a"), Shop("b")
    assert [await shop.charge(Order("a")) for shop in shops] == [1, 1, 2]
    assert [shop.refund(Order("a")) for shop in shops] == [3, 3, 3]
    assert [shop.book(Order("a")) for shop in shops] == [4, 4, 4]


# -- results


async def test_results_come_back_as_the_annotation_says(till: Till, options: dict[str, Any]) -> None:
    @idempotent(key=lambda key: key, **options)
    async def receipts(key: str) -> "dict[str, list[Receipt]]":
        return {"all": [Receipt(number=till.pay(key))]}

    @idempotent(key=lambda key: key, **options)
    async def nothing(key: str) -> None:
        till.pay(key)

    @idempotent(key=lambda key: key, **options)
    async def unannotated(key):  # type: ignore[no-untyped-def]  # a result of no declared type
        return {"number": till.pay(key)}

    for _ in range(2):
        assert await receipts("a") == {"all": [Receipt(number=1)]}
        assert await nothing("a") is None  # type: ignore[func-returns-value]  # that it is None is the point
        assert await unannotated("a") == {"number": 3}
    assert len(till.paid) == 3


async def test_a_codec_of_ones_own_keeps_what_json_can_not(till: Till, options: dict[str, Any]) -> None:
    class Hex:
        def dump(self, result: complex) -> bytes:
            return repr(result).encode()

        def load(self, data: bytes) -> complex:
            return complex(data.decode())

    @idempotent(key=lambda key: key, codec=Hex(), **options)
    async def turn(key: str) -> object:
        return complex(till.pay(key), 1)

    assert [await turn("a"), await turn("a")] == [1 + 1j, 1 + 1j]


# -- what can't be decorated


def refused() -> Iterator[Any]:
    def generator(order: Order) -> Iterator[int]:
        yield 1

    async def agenerator(order: Order) -> AsyncIterator[int]:
        yield 1

    def charge(order: Order) -> None:
        """For what wraps it."""

    class Charge:
        def __call__(self, order: Order) -> None:
            """An object that is called."""

    yield pytest.param(generator, "the generator refused.<locals>.generator", id="generator")
    yield pytest.param(agenerator, "the generator refused.<locals>.agenerator", id="async generator")
    yield pytest.param(Charge, "the class Charge: decorate its methods", id="class")
    yield pytest.param(Charge(), "Charge: decorate the 'def' itself", id="object")
    yield pytest.param(staticmethod(charge), "a staticmethod: put it below @staticmethod", id="static method")
    yield pytest.param(
        classmethod(charge),  # type: ignore[arg-type]  # it takes no class
        "a classmethod: put it below @classmethod",
        id="class method",
    )
    yield pytest.param(5, "a int", id="number")


@pytest.mark.parametrize(("function", "text"), list(refused()))
def test_what_is_no_function_is_refused_at_once(function: Any, text: str) -> None:
    with pytest.raises(TypeError) as raised:
        idempotent(key=lambda order: order.id, cache="memory://")(function)
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"key": lambda o: o}, r"key takes o: name parameters of .*charge\(\), which are order, currency"),
        ({"key": lambda *all_: all_}, "key takes any number"),
        ({"key": "order.id"}, "key is a str: give a function"),
        ({"payload": lambda order, amount: order}, "payload takes amount"),
        ({"caller": lambda user: user}, "caller takes user"),
        ({"cache": "order"}, "cache must be a URL"),
        ({"cache": 5}, "no cache"),
        ({"namespace": "a:b"}, "namespace"),
        ({"name": ""}, "name must be"),
        ({"ttl": -1}, "ttl"),
        ({"settings": {}}, "settings is a dict"),
        ({"result_type": threading.Thread}, r"give result_type= or codec="),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, Any], text: str) -> None:
    def charge(order: Order, currency: str = "EUR") -> None:
        """Never called."""

    with pytest.raises((TypeError, ValueError), match=text):
        idempotent(**{"key": lambda order: order.id, "cache": "memory://", **options})(charge)


def test_an_annotation_that_is_not_there_at_runtime_asks_for_a_result_type() -> None:
    def charge(order: "Nowhere") -> "Nowhere":  # type: ignore[name-defined]  # noqa: F821  # that it is nowhere is the point
        """Never called."""

    with pytest.raises(TypeError, match=r"charge\(\) returns can't be kept by its annotation: give result_type="):
        idempotent(key=lambda order: order.id, cache="memory://")(charge)
    idempotent(key=lambda order: order.id, cache="memory://", result_type=int)(charge)


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(ValueError, match="give name="):
        idempotent(key=lambda order: order.id, cache="memory://")(lambda order: order)


def test_a_plain_function_that_gives_a_coroutine_is_not_processed() -> None:
    async def charge(order: Order) -> None:
        """Never begun."""

    @idempotent(key=lambda order: order.id, cache="memory://")
    def wrapped(order: Order) -> Any:
        return charge(order)

    for _ in range(2):
        with pytest.raises(NotProcessed, match="decorate the 'async def' itself"):
            wrapped(Order("a"))


def test_the_function_keeps_what_it_is() -> None:
    @idempotent(key=lambda order: order.id, cache="memory://")
    async def charge(order: Order, currency: str = "EUR") -> int:
        """Pays."""
        return 1

    assert inspect.iscoroutinefunction(charge)
    assert str(inspect.signature(charge)).startswith("(order: ")
    assert (charge.__name__, charge.__doc__) == ("charge", "Pays.")

"""`idempotent`: what keys, payloads and results are made of, and what can't be decorated.

Rules of docs/contract.md: R12.12.
"""

import inspect
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID

import pytest

from oncegate import CallerMissing, KeyInvalid, KeyMissing, KeyReusedError, NotProcessed, idempotent
from tests.middleware.decorated import Order, Receipt, Till

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

"""One consumer has one handler: a second one would skip what the first has processed, so it is refused."""

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from oncegate import Delivery, Subscription
from oncegate.cache.memory.store import MemoryCache


class Pay:
    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __call__(self) -> int:
        return self.amount

    def twice(self) -> int:
        return 2 * self.amount


def logged(handler: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handler)
    def wrapped(*arguments: Any) -> Any:
        return handler(*arguments)

    return wrapped


def pay(*_: Any) -> int:
    return 1


async def mail(*_: Any) -> int:
    return 2


def describe(message: str) -> Delivery:
    return Delivery(message)


def made(amount: int) -> Callable[..., int]:
    return lambda *_: amount


def both() -> Subscription:
    return Subscription("ledger", cache=MemoryCache())


@pytest.mark.parametrize("second", [mail, logged(mail), functools.partial(mail, 1), Pay(1), Pay(1).twice, print])
async def test_another_handler_is_refused(second: Callable[..., Any]) -> None:
    for first in (pay, logged(pay), functools.partial(pay, 1)):
        one = both()
        await one.execute(Delivery("k"), first)
        with pytest.raises(ValueError, match=r"consumer 'ledger' .* of its own"):
            await one.execute(Delivery("l"), second)
        with pytest.raises(ValueError, match="would share"):
            one.handler(describe)(second)
        other = both()
        other.handler(describe)(first)
        with pytest.raises(ValueError, match="would share"):
            other.handler(describe)(second)
        with pytest.raises(ValueError, match="would share"):
            other.only(first, second)


async def test_functions_of_one_factory_are_two_when_they_are_decorated() -> None:
    one = both()
    one.handler(describe)(made(1))
    with pytest.raises(ValueError, match="would share"):
        one.handler(describe)(made(2))


async def test_what_is_made_for_each_message_is_one_handler() -> None:
    for make in (made, Pay, lambda amount: Pay(amount).twice, lambda amount: functools.partial(pay, amount)):
        one = both()
        for amount in (1, 2):
            begun = await one.execute(Delivery(f"{amount}"), make(amount))
            assert begun.run
            assert begun.execution.raised is None


async def test_one_function_may_have_two_sources() -> None:
    one = both()
    for source in (describe, lambda message: Delivery(message.decode())):
        one.handler(source)(pay)
    one.only(pay)
    assert (await one.execute(Delivery("k"), pay)).run


async def test_several_handlers_that_are_chosen_by_the_kind_of_message_are_given_together() -> None:
    one = both()
    one.only(pay, mail)
    for handler in (pay, mail):
        assert (await one.execute(Delivery(handler.__name__), handler)).run
    with pytest.raises(ValueError, match="would share"):
        await one.execute(Delivery("k"), made(1))


async def generated() -> AsyncIterator[int]:
    yield 1


def generated_plainly() -> Iterator[int]:
    yield 1


class Generating:
    async def __call__(self) -> AsyncIterator[int]:
        yield 1


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (generated, "generator"),
        (functools.partial(generated), "generator"),
        (generated_plainly, "generator"),
        (Generating(), "generator"),
        (Pay, "class"),
        (None, "NoneType"),
        ("pay", "str"),
    ],
)
async def test_what_would_execute_nothing_is_no_handler(handler: Any, why: str) -> None:
    one = both()
    with pytest.raises(TypeError, match=why):
        await one.execute(Delivery("k"), handler)
    with pytest.raises(TypeError, match=why):
        one.handler(describe)(handler)
    assert (await one.execute(Delivery("k"), pay)).run, "nothing of that counts"


@pytest.mark.parametrize("cache", [b"redis://:secret@127.0.0.1/0", None, MemoryCache, dict])
def test_what_is_no_cache_is_refused_at_once(cache: Any) -> None:
    with pytest.raises(TypeError, match=r"cache .*from_url\(") as refusal:
        Subscription("ledger", cache=cache)
    assert "secret" not in str(refusal.value)


def test_what_are_no_settings_is_refused_at_once() -> None:
    wrong: Any = {"lease": 5}
    with pytest.raises(TypeError, match="settings"):
        Subscription("ledger", cache=MemoryCache(), settings=wrong)
    with pytest.raises(TypeError, match="aliases"):
        Subscription("ledger", cache=MemoryCache(), aliases="old")

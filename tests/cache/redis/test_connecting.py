"""URLs, logins, encryption, versions: what a start accepts, refuses, and says about it.

Rules of docs/contract.md: R10.6.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from redis.asyncio.connection import Connection

from oncegate.cache.errors import CacheUnavailable, CacheUnsupported
from oncegate.cache.record import ClaimRequest, Record, State
from oncegate.cache.redis.connection.faults import check_version
from oncegate.cache.redis.store import RedisCache
from testing.servers import RedisServer
from testing.waiting import until
from tests.cache.inside import cached
from tests.cache.proxy import Proxy

CLAIM: dict[str, Any] = {"fingerprint": b"p" * 16, "lease_ms": 30_000, "retention_ms": 60_000}
SECRET = "s3cr3t-of-the-user"


async def refusal(url: str) -> str:
    """What `check` says of a Redis that it can't use; the same text must be fit for a log."""
    cache = RedisCache.from_url(url, timeout=30)
    with pytest.raises(CacheUnavailable) as caught:
        await cache.check()
    await cache.close()
    text = str(caught.value)
    assert SECRET not in text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("kind", ["tcp", "unix", "tls"])
async def test_it_works_over_each_kind_of_connection(kind: str) -> None:
    async with cached(kind) as (_, cache):
        token = os.urandom(16)
        assert (await cache.claim("k", ClaimRequest(token=token, **CLAIM))).won
        outcome: dict[str, Any] = {"attempt": 1, "state": State.SUCCEEDED, "fingerprint": b"p" * 16}
        assert await cache.complete("k", Record(token=token, **outcome), ttl_ms=60_000)
        answers = await asyncio.gather(
            *[cache.claim("k", ClaimRequest(token=os.urandom(16), **CLAIM)) for _ in range(300)]
        )
        assert not any(answer.won for answer in answers)


async def test_a_certificate_of_an_unknown_authority_is_refused_in_one_line() -> None:
    with RedisServer("tls") as server:
        text = await refusal(f"rediss://:{SECRET}@127.0.0.1:{server.port}")
    assert "certificate" in text


async def test_a_password_is_used_and_a_wrong_or_missing_one_is_told_in_one_line() -> None:
    with RedisServer(config={"requirepass": SECRET}) as server:
        cache = RedisCache.from_url(f"redis://:{SECRET}@127.0.0.1:{server.port}", timeout=30)
        assert (await cache.claim("k", ClaimRequest(token=os.urandom(16), **CLAIM))).won
        await cache.close()
        assert "login was refused" in await refusal(f"redis://:{SECRET}-wrong@127.0.0.1:{server.port}")
        assert "NOAUTH (it asks for a login)" in await refusal(server.url)


async def test_a_user_without_dangerous_commands_can_hold_records() -> None:
    with RedisServer() as server:
        server.command("ACL", "SETUSER", "gate", "on", f">{SECRET}", "~*", "+@all", "-@dangerous", "-@admin")
        cache = RedisCache.from_url(f"redis://gate:{SECRET}@127.0.0.1:{server.port}", timeout=30)
        advice = await cache.check()
        assert any("CLIENT KILL" in line for line in advice)
        assert (await cache.claim("k", ClaimRequest(token=os.urandom(16), **CLAIM))).won
        await cache.close()


async def test_a_claim_is_withdrawn_for_a_user_who_may_not_kill_connections() -> None:
    with RedisServer() as server:
        server.command("ACL", "SETUSER", "gate", "on", f">{SECRET}", "~*", "+@all", "-@dangerous", "-@admin")
        async with Proxy(server.port) as proxy:
            cache = RedisCache.from_url(proxy.url.replace("://", f"://gate:{SECRET}@"), timeout=30)
            await cache.get("nothing")
            proxy.swallow_replies()
            pending = asyncio.ensure_future(cache.claim("k", ClaimRequest(token=os.urandom(16), **CLAIM)))
            await until(lambda: server.command("EXISTS", "k"))
            proxy.cut_clients()
            with pytest.raises(CacheUnavailable):
                await pending
            await until(lambda: server.command("EXISTS", "k") == 0)
            await cache.close()


STEPS = 40
"""Of the event loop: more than a connection's opening takes until it waits for a reply."""
on_both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
Run = Callable[[Coroutine[Any, Any, Any]], Any]


async def leave_after(steps: int, listener: socket.socket, opening: "asyncio.Task[Any]") -> None:
    """Ends ``listener`` as its process's end does, with each connection that waits there, in the midst of ``opening``."""
    for _ in range(steps):
        await asyncio.sleep(0)
    listener.close()
    await asyncio.wait((opening,), timeout=0.05)


@on_both_loops
@pytest.mark.parametrize("url", ["redis://{}/1", "redis+cluster://{}", "redis+sentinel://{}/shop"])
def test_a_server_that_leaves_while_a_connection_is_opened_is_unavailable(url: str, run: Run) -> None:
    """At each step of it: a client library's own errors must not come through, which would end a worker."""

    async def left_after(steps: int) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        cache = RedisCache.from_url(url.format(f"127.0.0.1:{listener.getsockname()[1]}"), timeout=30)
        reading = asyncio.ensure_future(cache.get("nothing"))
        await leave_after(steps, listener, reading)
        with pytest.raises(CacheUnavailable) as caught:
            await reading
        assert "RuntimeError" not in str(caught.value)
        await cache.close()

    for steps in range(STEPS):
        run(left_after(steps))


async def test_what_a_client_library_raises_beyond_its_own_errors_is_an_outage(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: Connection) -> None:
        raise ArithmeticError(f"unforeseen, and with {SECRET}")

    with monkeypatch.context() as patched:
        patched.setattr(Connection, "connect", fail)
        assert (
            await refusal(redis_server.url) == f"Redis at 127.0.0.1:{redis_server.port} can't be used: ArithmeticError"
        )


async def test_a_user_who_may_not_run_scripts_is_told_so() -> None:
    with RedisServer() as server:
        server.command("ACL", "SETUSER", "gate", "on", f">{SECRET}", "~*", "+@all", "-@scripting")
        assert "NOPERM" in await refusal(f"redis://gate:{SECRET}@127.0.0.1:{server.port}")


async def test_a_database_of_the_url_is_the_one_used() -> None:
    with RedisServer() as server:
        cache = RedisCache.from_url(server.url.replace("/0", "/3"), timeout=30)
        await cache.claim("k", ClaimRequest(token=os.urandom(16), **CLAIM))
        assert server.command("EXISTS", "k") == 0
        server.command("SELECT", 3)
        assert server.command("EXISTS", "k") == 1
        await cache.close()


async def test_advice_names_eviction_and_the_lack_of_persistence() -> None:
    async with cached(config={"maxmemory-policy": "allkeys-lru"}) as (_, cache):
        advice = await cache.check()
        assert [line.split()[0] for line in advice] == ["maxmemory-policy", "no"]
        assert "allkeys-lru" in advice[0]
    async with cached(persist=True) as (_, cache):
        assert await cache.check() == []


@pytest.mark.parametrize("text", ["7.0.0", "7.0.15", "7.2.4", "8.0", "10.1.0", "255.255.255"])
def test_redis_7_and_newer_will_do(text: str) -> None:
    check_version(text)


@pytest.mark.parametrize("text", ["6.2.14", "6", "2.8.0", "0", ""])
def test_an_older_or_nameless_version_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(CacheUnsupported, match="upgrade the server") as caught:
        check_version(text)
    assert text in str(caught.value)


async def test_an_old_server_is_refused_at_the_check_and_is_unavailable_to_calls() -> None:
    """A server that says of itself what Redis 6 says: it can't be started here, and its greeting is all that counts."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            hello = b"*4\r\n$7\r\nversion\r\n$6\r\n6.2.14\r\n$2\r\nid\r\n:7\r\n"
            commands = data.count(b"SETINFO") or 1 + data.count(b"INFO\r\n") + data.count(b"LOAD")
            writer.write((hello if b"HELLO" in data else b"+OK\r\n") + b"+OK\r\n" * (commands - 1))
        writer.close()

    old = await asyncio.start_server(answer, "127.0.0.1", 0)
    cache = RedisCache.from_url(f"redis://127.0.0.1:{old.sockets[0].getsockname()[1]}", timeout=30)
    with pytest.raises(CacheUnsupported, match=r"6\.2\.14 is too old"):
        await cache.check()
    await asyncio.sleep(0.1)  # past the pause after a failure
    with pytest.raises(CacheUnavailable, match=r"6\.2\.14 is too old"):
        await cache.get("k")
    await cache.close()
    old.close()
    await old.wait_closed()


@pytest.mark.parametrize(
    ("url", "text"),
    [
        (f"redis+sentinel://:{SECRET}@h", "redis+sentinel:// needs the name of the service"),
        (f"redis+sentinel://:{SECRET}@h/", "redis+sentinel:// needs the name of the service"),
        (f"redis+sentinel://:{SECRET}@h/service/{SECRET}", "redis+sentinel:// has a database that is not a number"),
        (f"redis+sentinel://:{SECRET}@/service", "redis+sentinel:// needs a host"),
        (f"redis+sentinel://:{SECRET}@h/service?sentinel_pass={SECRET}", "option"),
        (f"rediss+cluster://:{SECRET}@h,", "rediss+cluster:// needs a host, or several"),
        (f"redis+cluster://:{SECRET}@h:port", "redis+cluster:// has a port that is not a number"),
        (f"redis+cluster://:{SECRET}@h:0", "redis+cluster:// has a port that is not a number"),
        (f"redis+cluster://:{SECRET}@[::1:6379", "redis+cluster:// has a host that can't be read"),
        (f"redis+cluster://:{SECRET}@h/3", "redis+cluster:// has no databases but 0"),
        (f"redis+cluster://:{SECRET}@h?no_such_option={SECRET}", "option"),
        (f"redis+other://:{SECRET}@h", "begins with redis://"),
        (f"http://:{SECRET}@h/0", "begins with redis://"),
        (f"redis://:{SECRET}@h:port/0", "can't be read"),
        (f"redis://:{SECRET}@h/0?no_such_option={SECRET}", "option"),
        (f"redis://:{SECRET}@h/0?socket_timeout={SECRET}", "can't be read"),
    ],
)
def test_a_url_that_can_not_be_used_is_refused_without_its_secrets(url: str, text: str) -> None:
    with pytest.raises(ValueError, match=text.replace("+", r"\+")) as caught:
        RedisCache.from_url(url)
    assert SECRET not in str(caught.value)

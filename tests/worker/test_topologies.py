"""A worker on a Redis Cluster and behind Sentinel: one command that succeeds, one that dies, and its way back."""

import asyncio
from pathlib import Path

import pytest

from oncegate.cache.redis.streams.commands import run_command, stream_client
from testing.command_line import invoke
from testing.waiting import until
from tests.worker.shop import Shop


@pytest.mark.parametrize("kind", ["cluster", "sentinel"])
async def test_a_worker_and_an_operator_work_wherever_the_records_are(
    kind: str, request: pytest.FixtureRequest, redis_url: str, tmp_path: Path
) -> None:
    group = request.getfixturevalue(f"{kind}_group")
    shop = Shop(redis_url, tmp_path)  # its own client is not used: it knows single servers only
    shop.url = group.url
    client = stream_client(group.url, timeout=5)

    async def one_is_dead() -> bool:
        dead = await run_command(client, "XLEN", shop.dead) == 1
        return dead and not (await run_command(client, "XPENDING", shop.stream, "commands"))[0]

    try:
        for key, payload in (("good", {}), ("bad", {"do": "reject"})):
            fields = [part for pair in shop.command(key, payload).fields().items() for part in pair]
            await run_command(client, "XADD", shop.stream, "*", *fields)
        worker = shop.start(settings={"cache_timeout": 0.5})
        await until(one_is_dead)
        assert (shop.effects("good"), shop.effects("bad")) == (1, 0)
        retried = await asyncio.to_thread(shop.operate, "retry", "--all")
        assert "1 to be processed again." in retried.stdout
        await until(one_is_dead)
        assert await asyncio.to_thread(worker.stop) == 0
    finally:
        shop.close()
        await client.close()


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster", "redis+sentinel"])
def test_a_redis_that_is_not_there_is_waited_for_wherever_it_is_to_be(
    scheme: str, redis_url: str, tmp_path: Path
) -> None:
    shop = Shop(redis_url, tmp_path)
    shop.url = f"{scheme}://127.0.0.1:1" + ("/mymaster" if scheme == "redis+sentinel" else "")
    try:
        worker = shop.start().logs("the stream can't be read")
        assert worker.stop() == 0
        assert worker.text().count("the stream can't be read") == 1
    finally:
        shop.close()
    done = invoke("commands", "list", "--cache", shop.url)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "Redis at 127.0.0.1:1 can't be used" in done.stderr or "no Sentinel" in done.stderr

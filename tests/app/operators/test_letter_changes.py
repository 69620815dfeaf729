"""What an operator's change of dead letters has done is reported, also where the cache goes away in the midst of it.

Rules of docs/contract.md: R11.22, R11.39, R11.42.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from oncegate.app.operators.audit import Author
from oncegate.app.operators.audit_lines import AuditLines
from oncegate.app.operators.letters.changes import make_and_report
from oncegate.app.operators.letters.dead_letters import Letter, open_commands
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.redis.store import RedisCache
from testing.caller import fresh_key
from testing.command_line import OPERATOR as BY
from testing.command_line import invoke
from testing.servers import RedisServer
from tests.app.operators.test_dead_letters import OPERATOR, Letters, described
from tests.app.operators.test_streams import command
from tests.app.submitted import Submitted


async def test_a_letter_that_stays_does_not_hide_what_was_retried_beside_it(
    submitted: Submitted, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    letters = Letters(submitted, redis_server)
    letters.has_a_reader()
    letters.add(command(1))
    stays = letters.add(command(1), consumer="gone")
    done = await letters.post(f"{command(1)}/retry", document={"reason": "mended"})
    assert ([each["command"] for each in done["retried"]], done["unread"]) == ([command(1)], [stays])
    assert f"dead letters of {command(1)}: retried by" in caplog.text


@pytest.mark.parametrize("retries", [True, False], ids=["retried", "discarded"])
async def test_what_was_changed_before_the_cache_went_away_is_reported(
    retries: bool, caplog: pytest.LogCaptureFixture
) -> None:
    done, left = "retried" if retries else "discarded", 2
    with RedisServer("unix") as redis:
        settings = GatewaySettings(upstream="http://127.0.0.1:1", cache=redis.url, namespace=fresh_key())
        cache = RedisCache.from_url(redis.url, timeout=5)
        there: Any = type("There", (), {"client": None, "namespace": settings.namespace})
        letters = Letters(there, redis)
        letters.has_a_reader()
        ids = [letters.add(command(number)) for number in range(4)]

        async def chosen() -> AsyncIterator[Letter]:
            for identifier in ids[:left]:
                yield Letter(identifier, {})
            redis.stop()
            yield Letter(ids[left], {})

        async with open_commands(settings, cache, "commands", "billing") as commands:
            with caplog.at_level(logging.WARNING), pytest.raises(CacheUnavailable):
                await make_and_report(
                    commands,
                    AuditLines(cache, settings.namespace),
                    chosen(),
                    Author("will", "mended"),
                    "them",
                    retries=retries,
                )
        await cache.close()
    assert f"{left} dead letters of them: {done} by will: mended" in caplog.text
    assert [f"dead letter {each} of" in caplog.text for each in ids] == [True, True, False, False]
    assert "an audit line was not kept, and is in this log alone" in caplog.text


NOT_RETRIED = {b"field-%d" % number: b"" for number in range(5000)}
"""More fields than Redis puts into an entry at once: to retry such a letter is an error of Redis, which goes on."""


@pytest.mark.parametrize("way", ["ids", "all", "error", "discarded ids"])
async def test_what_the_command_line_changed_before_an_error_has_its_audit_lines(
    submitted: Submitted, redis_server: RedisServer, way: str
) -> None:
    letters = Letters(submitted, redis_server)
    letters.has_a_reader()
    if way == "error":  # the newest first
        letters.add(command(3), others=NOT_RETRIED)
        ids = [letters.add(command(2)), letters.add(command(1))]
    else:
        ids = [letters.add(command(1)), letters.add(command(2))]
        letters.add(command(3), others=NOT_RETRIED)
    if way == "discarded ids":
        did, arguments = "discarded", ["discard", *ids, "absurd"]
    else:
        (group,) = (await letters.get("errors", stream="commands"))["groups"]
        did, arguments = (
            "retried",
            {"ids": ["retry", *ids, command(3)], "all": ["retry", "--all"]}.get(
                way, ["retry", "--error", group["group"]]
            ),
        )
    where = ["--cache", redis_server.url, "--namespace", submitted.namespace, "--consumer", "billing"]
    done = await asyncio.to_thread(
        invoke, "commands", *arguments, *where, "--reason", "mended", ONCEGATE_CACHE_TIMEOUT="10"
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    left = [each["command"] for each in (await letters.get(stream="commands"))["dead_letters"]]
    assert left == [command(3)]
    for number, each in zip((2, 1) if way == "error" else (1, 2), ids, strict=True):
        assert (
            f"oncegate.audit: dead letter {each} of command {command(number)}: {did} by {BY}: mended\n" in done.stderr
        )
    kept = described(await letters.client.get("/_oncegate/audit/", headers=OPERATOR), 200)["lines"]
    assert {(line["operator"], line["done"], line["reason"]) for line in kept} == {(BY, did, "mended")}
    assert sum(int(line["what"].split()[0]) for line in kept) == 2

"""What an operator's change of dead letters has done is reported, also where the cache goes away in the midst of it.

Rules of docs/contract.md: R11.22, R11.42.
"""

import logging
from collections.abc import Iterator
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
from testing.servers import RedisServer
from tests.app.operators.test_dead_letters import Letters
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

        def chosen() -> Iterator[Letter]:
            for identifier in ids[:left]:
                yield Letter(identifier, {})
            redis.stop()
            yield Letter(ids[left], {})

        async with open_commands(settings, cache, "commands", "billing") as commands:
            with caplog.at_level(logging.WARNING), pytest.raises(CacheUnavailable):
                await make_and_report(
                    commands, AuditLines(cache, settings.namespace), chosen(), Author("will", "mended"), retries, str
                )
        await cache.close()
    assert f"{left}: {done} by will: mended" in caplog.text
    assert "an audit line was not kept, and is in this log alone" in caplog.text

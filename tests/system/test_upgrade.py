"""A service is upgraded, and rolled back, while requests come: earlier versions beside this one, on one Redis.

They come out of git's history (testing/former.py), and as the bytes that they have left (tests/data/former.json). Rules of
docs/contract.md: R11.37.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from testing import former
from testing.caller import Caller, fresh_key, is_replay, slug, until_answer
from testing.former import FIRST, KINDS, LAST, THIS, Former, post, put_back
from testing.ledger import Ledger, Reply
from testing.servers import RedisServer
from testing.waiting import until
from tests.system.versions import Versions

PAIRS = [pytest.param(FIRST, THIS, id="from the first"), pytest.param(LAST, THIS, id="from the last")]
WAYS = [*PAIRS, pytest.param(THIS, FIRST, id="back to the first"), pytest.param(THIS, LAST, id="back to the last")]
WRITTEN: list[dict[str, Any]] = json.loads(former.BYTES.read_text("utf-8"))


@pytest.fixture
def versions(ledger: Ledger, redis_server: RedisServer, tmp_path: Path) -> Iterator[Versions]:
    with ExitStack() as stack:
        yield Versions(stack, ledger, redis_server, tmp_path)


@pytest.mark.parametrize(
    ("one", "other", "cache"),
    [
        pytest.param(FIRST, THIS, "redis", id="from the first"),
        pytest.param(LAST, THIS, "redis", id="from the last"),
        pytest.param(LAST, THIS, "sqlite", id="from the last, in a file"),
    ],
)
async def test_no_key_is_executed_twice_by_two_versions_at_once(
    versions: Versions, ledger: Ledger, caller: Caller, tmp_path: Path, one: Former, other: Former, cache: str
) -> None:
    if cache == "sqlite":
        versions.cache = f"sqlite:///{tmp_path}/records.db"
    gateways = [versions.gateway(version, asynchronous=cache == "redis") for version in (one, other)]
    for gateway in gateways:
        gateway.ready()
    keys = [fresh_key() for _ in range(150)]
    for begin in range(0, len(keys), 15):
        some = keys[begin : begin + 15]
        answers = await asyncio.gather(*(caller.settled(gateway, key) for key in some for gateway in gateways * 2))
        for number, key in enumerate(some):
            of_key = answers[number * 4 : number * 4 + 4]
            assert [answer.status_code for answer in of_key] == [201] * 4
            assert len({answer.content for answer in of_key}) == 1
            assert sum(is_replay(answer) for answer in of_key) == 3
            assert len(ledger.arrivals(key)) == 1


@pytest.mark.parametrize(("before", "after"), WAYS)
async def test_what_one_version_has_kept_the_other_answers(
    versions: Versions, ledger: Ledger, caller: Caller, before: Former, after: Former
) -> None:
    keys = {kind: fresh_key() for kind in KINDS}
    ledger.answer(keys["failed"], Reply(422, (("content-type", "text/plain"),), b"no"))
    ledger.answer(keys["unknown"], Reply(cut="before-head"))
    left = versions.gateway(before).ready()
    first = {kind: await caller.post(left, keys[kind], path) for kind, path in KINDS.items() if kind != "killed"}
    async with caller.held(ledger, left, keys["killed"]) as (task, _):
        left.kill()
        await asyncio.wait([task])
    assert task.exception()

    comes = versions.gateway(after).ready()
    for kind in ("succeeded", "failed", "submitted"):
        retry = await caller.post(comes, keys[kind], KINDS[kind])
        assert (retry.status_code, retry.content, is_replay(retry)) == (
            first[kind].status_code,
            first[kind].content,
            True,
        )
    assert slug(await caller.post(comes, keys["unknown"])) == "outcome-unknown"
    assert slug(await caller.post(comes, keys["killed"])) == "in-flight"
    assert slug(await caller.post(comes, keys["succeeded"], body=b"another payload")) == "key-reused"
    assert {kind: len(ledger.arrivals(key)) for kind, key in keys.items()} == {
        **dict.fromkeys(KINDS, 1),
        "submitted": 0,
    }


@pytest.mark.parametrize(("one", "other"), PAIRS)
async def test_commands_of_two_versions_are_processed_once_by_workers_of_both(
    versions: Versions, ledger: Ledger, caller: Caller, one: Former, other: Former
) -> None:
    gateways = [versions.gateway(version) for version in (one, other)]
    for gateway in gateways:
        gateway.ready()
    logs = [await asyncio.to_thread(versions.worker, version) for version in (one, other)]
    keys = [fresh_key() for _ in range(60)]
    submitted = await asyncio.gather(*(caller.settled(each, key, "/reports") for key in keys for each in gateways))
    assert {answer.status_code for answer in submitted} == {202}
    assert len({answer.content for answer in submitted}) == len(keys)
    await until(lambda: all(ledger.arrivals(key) for key in keys), "all of them arrive")
    headers = {"authorization": "Bearer secret-of-alice"}
    for answer in submitted:
        for gateway in gateways:
            path = answer.headers["location"]
            shown = await until_answer(
                lambda at=gateway, path=path: caller.get(at, path, headers),  # type: ignore[misc]  # bound on purpose
                lambda got: got.json()["status"] == "succeeded",
            )
            assert shown.json()["command"] == answer.json()["command"]
    assert {len(ledger.arrivals(key)) for key in keys} == {1}
    assert [path.read_text() for path in logs if "rror" in path.read_text()] == []


@pytest.mark.parametrize("written", WRITTEN, ids=["the first", "the last"])
async def test_the_bytes_that_a_version_has_left_mean_what_they_meant(
    written: dict[str, Any], ledger: Ledger, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer())
        put_back(written, server)
        versions = Versions(stack, ledger, server, tmp_path)
        versions.namespace = former.NAMESPACE
        gateway = versions.gateway(THIS).ready()
        before = ledger.total()
        for kind in ("succeeded", "failed", "submitted"):
            retry = await asyncio.to_thread(post, gateway, kind, KINDS[kind])
            assert {"status": retry.status_code, "body": retry.text} == written["answers"][kind]
            assert is_replay(retry)
        for kind in ("unknown", "killed"):
            assert slug(await asyncio.to_thread(post, gateway, kind, KINDS[kind])) == "outcome-unknown"
        assert ledger.total() == before
        await asyncio.to_thread(versions.worker, THIS)
        await until(lambda: ledger.total() > before, "the command is processed")
        status = f"/_oncegate/commands/{json.loads(written['answers']['submitted']['body'])['command']}"
        async with Caller() as caller:
            await until_answer(
                lambda: caller.get(gateway, status, former.CALLER), lambda got: got.json()["status"] == "succeeded"
            )
        assert ledger.total() == before + 1

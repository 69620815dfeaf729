"""``dead-letters/`` over HTTP: what `oncegate commands` does, for who shows the token.

Rules of docs/contract.md: R11.8, R11.18, R11.19, R11.22.
"""

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest

from oncegate.app.operators.letters import dead_letters
from oncegate.cache.redis.streams.stream import Command, dead_letters_key, stream_key
from testing.command_line import invoke
from testing.servers import RedisServer
from tests.app.described import as_described
from tests.app.submitted import ALICE, TOKEN, Submitted, serving

LETTERS = "/_oncegate/dead-letters/"
OPERATOR = {"authorization": f"Bearer {TOKEN}"}
NOBODY = f"{'a' * 20}:{'b' * 20}"
COMMAND = f"{'c' * 20}:{'d' * 20}"


class Letters:
    """The dead letters of a gateway's stream ``commands``, which its consumer ``billing`` reads."""

    def __init__(self, there: Submitted, redis: RedisServer) -> None:
        self.client = there.client
        self._redis = redis
        self._stream = stream_key(there.namespace, "commands")
        self._dead = dead_letters_key(there.namespace, "commands")

    def has_a_reader(self) -> None:
        self._redis.command("XGROUP", "CREATE", self._stream, "billing", "0", "MKSTREAM")

    def add(self, command: str, consumer: str = "billing", others: dict[bytes, bytes] | None = None) -> str:
        """Put a command aside; the letter's id."""
        entry = Command(
            command=command,
            key="secret-key",
            fingerprint=b"f" * 16,
            method="POST",
            target="/reports?token=secret",
            route="/reports",
            body=b'{"secret": 1}',
            accepted_at_ms=1_790_000_000_000,
        ).fields() | {
            b"dead.entry": b"1-0",
            b"dead.consumer": consumer.encode(),
            b"dead.reason": b"rejected",
            b"dead.attempts": b"3",
            b"dead.error_type": b"NotRetryable",
            b"dead.error": b"no such account",
            b"dead.at": b"1790000000000",
            b"dead.worker": b"host/1",
        }
        lines = entry | (others or {})
        reply: Any = self._redis.command("XADD", self._dead, "*", *[part for pair in lines.items() for part in pair])
        return reply.decode() if isinstance(reply, bytes) else str(reply)

    def entries(self) -> list[Any]:
        found: list[Any] = list(self._redis.command("XRANGE", self._stream, "-", "+"))
        return found

    @staticmethod
    def fields(entry: Any) -> dict[bytes, bytes]:
        return dict(entry[1])

    async def get(self, path: str = "", status: int = 200, **query: Any) -> Any:
        return described(await self.client.get(LETTERS + path, params=query or None, headers=OPERATOR), status)

    async def post(self, path: str, status: int = 200, document: dict[str, str] | None = None) -> Any:
        sent = self.client.post(LETTERS + path, headers=OPERATOR, params={"stream": "commands"}, json=document or {})
        return described(await sent, status)


def described(answer: httpx.Response, status: int) -> Any:
    """The content of an answer of ``status``, which is as openapi/oncegate.yaml says."""
    assert answer.status_code == status, answer.text
    return as_described(answer).json()


@pytest.fixture
def letters(submitted: Submitted, redis_server: RedisServer) -> Letters:
    return Letters(submitted, redis_server)


async def test_dead_letters_are_listed_the_oldest_first_and_go_on_where_a_list_ended(letters: Letters) -> None:
    ids = [letters.add(f"{'c' * 19}{number}:{'d' * 20}") for number in range(3)]
    first = await letters.get(stream="commands", limit=2)
    assert [each["id"] for each in first["dead_letters"]] == ids[:2]
    assert first["counts"] == {"unread": 0, "pending": 0, "dead": 3, "trimmed": 0}
    rest = await letters.get(stream="commands", after=first["after"])
    assert ([each["id"] for each in rest["dead_letters"]], rest["after"]) == (ids[2:], "")
    letter = rest["dead_letters"][0]
    assert (letter["error_type"], letter["error"], letter["path"]) == ("NotRetryable", "no such account", "/reports")
    assert "secret" not in str(first) + str(rest)


async def test_a_command_is_shown_by_each_of_its_ids_and_its_payload_where_it_is_wanted(letters: Letters) -> None:
    letter = letters.add(COMMAND)
    for identifier in (COMMAND, letter, "1-0"):
        shown = await letters.get(identifier, stream="commands")
        assert (shown["command"], shown["consumer"]) == (COMMAND, "billing")
        assert [each["id"] for each in shown["dead_letters"]] == [letter]
        assert "secret" not in str(shown)
    (whole,) = (await letters.get(letter, stream="commands", body="true"))["dead_letters"]
    assert (whole["key"], whole["target"], whole["body"]) == ("secret-key", "/reports?token=secret", '{"secret": 1}')


async def test_a_command_that_was_submitted_is_shown_with_its_records(submitted: Submitted, letters: Letters) -> None:
    identifier = (await submitted.submit()).json()["command"]
    shown = await letters.get(identifier, stream="commands")
    assert (shown["submission"]["state"], shown["execution"], shown["dead_letters"]) == ("succeeded", None, [])


async def test_a_dead_letter_is_retried_once(
    letters: Letters, submitted: Submitted, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    letters.has_a_reader()
    letter = letters.add(COMMAND)
    with caplog.at_level(logging.WARNING, "oncegate.audit"):
        done = await letters.post(f"{COMMAND}/retry")
    (retried,) = done["retried"]
    assert (retried["id"], retried["command"], done["unread"]) == (letter, COMMAND, [])
    assert f"dead letters of {COMMAND}: retried by an operator" in caplog.text
    ((entry, fields),) = redis_server.command("XRANGE", stream_key(submitted.namespace, "commands"), "-", "+")
    assert (entry.decode(), b"attempts_before" in fields) == (retried["entry"], True)
    assert (await letters.get(stream="commands"))["counts"]["dead"] == 0
    await letters.post(f"{COMMAND}/retry", 404)


async def test_a_retried_command_says_by_whom_and_why_when_it_is_given_up_again(letters: Letters) -> None:
    """R11.22"""
    letters.has_a_reader()
    letter = letters.add(COMMAND)
    await letters.post(f"{letter}/retry", document={"reason": "first"})
    again = letters.add(f"{'e' * 20}:{'d' * 20}", others={b"retried": b"retried by bob: first"})
    (shown,) = (await letters.get(again, stream="commands"))["dead_letters"]
    assert shown["retried"] == "retried by bob: first"
    done = await letters.post(f"{again}/retry", document={"reason": "second"})
    assert done["unread"] == []
    notes = [letters.fields(entry)[b"retried"] for entry in letters.entries()]
    assert notes == [b"retried by an operator: first", b"retried by an operator: second"]


async def test_a_dead_letter_whose_consumer_reads_no_more_stays(letters: Letters) -> None:
    letter = letters.add(COMMAND, consumer="gone")
    refused = await letters.post(f"{letter}/retry", 409)
    assert "start its worker first" in refused["detail"]
    assert (await letters.get(stream="commands"))["counts"]["dead"] == 1


async def test_a_dead_letter_is_discarded(letters: Letters) -> None:
    letter, other = letters.add(COMMAND), letters.add(f"{'e' * 20}:{'d' * 20}")
    assert (await letters.post(f"{letter}/discard"))["discarded"] == [{"id": letter, "command": COMMAND}]
    assert [each["id"] for each in (await letters.get(stream="commands"))["dead_letters"]] == [other]
    await letters.post(f"{letter}/discard", 404)


async def test_an_instant_that_can_t_be_one_hides_nothing(letters: Letters) -> None:
    """999999999999999 once ended the list in a traceback."""
    for instant in (b"999999999999999", b"253402300800000", b"9" * 30, b"-1", b"soon"):
        letter = letters.add(COMMAND, others={b"accepted_at": instant, b"dead.at": instant})
        (*_, listed) = (await letters.get(stream="commands"))["dead_letters"]
        (shown,) = (await letters.get(letter, stream="commands"))["dead_letters"]
        assert listed == shown
        assert (shown["id"], shown["accepted_at"], shown["died_at"]) == (letter, None, None)


async def test_without_the_token_nothing_is_shown_or_done(letters: Letters) -> None:
    letter = letters.add(COMMAND)
    for headers in ({}, *({"authorization": each} for each in ("Bearer alice", f"Basic {TOKEN}", f"Bearer {TOKEN}x"))):
        for method, path in (("GET", ""), ("GET", letter), ("POST", f"{letter}/retry"), ("POST", f"{letter}/discard")):
            answer = await letters.client.request(method, LETTERS + path, headers=headers)
            assert letter not in str(described(answer, 401))
    assert (await letters.get(stream="commands"))["counts"]["dead"] == 1


async def test_what_names_no_command_or_stream_is_refused(letters: Letters) -> None:
    which = await letters.get(status=400)
    assert which["detail"] == "stream is one of commands, tenants"
    other = await letters.get(status=400, stream="another")
    assert other == which | {"request_id": other["request_id"]}
    assert (await letters.get(stream="tenants"))["dead_letters"] == []
    for query in ({"limit": "0"}, {"limit": "many"}, {"after": "x"}):
        await letters.get(status=400, stream="commands", **query)
    for identifier in ("x", "1", "a:b"):
        await letters.get(identifier, 400, stream="commands")
        await letters.post(f"{identifier}/retry", 400)
    for identifier in (NOBODY, "1-1"):
        await letters.get(identifier, 404, stream="commands")
        await letters.post(f"{identifier}/retry", 404)
        await letters.post(f"{identifier}/discard", 404)


async def test_the_only_stream_needs_no_name_and_a_redis_that_is_away_is_503() -> None:
    with RedisServer() as redis:
        async with serving(redis, routes=[{"path": "/reports", "mode": "either", "consumer": "billing"}]) as there:
            letters = Letters(there, redis)
            letter = letters.add(COMMAND)
            assert [each["id"] for each in (await letters.get())["dead_letters"]] == [letter]
            redis.stop()
            await letters.get(status=503)


async def test_they_are_on_the_operators_port_alone_and_not_without_an_asynchronous_route(
    redis_server: RedisServer,
) -> None:
    async with serving(redis_server, ops_port=65000) as there:
        assert (await there.client.get(LETTERS, headers=OPERATOR)).status_code == 404
    async with serving(redis_server, routes=[]) as there:
        assert (await there.client.get(LETTERS, headers=OPERATOR)).status_code == 404
        assert (await there.client.get(LETTERS, headers=ALICE)).status_code == 401


async def test_who_retried_and_discarded_what_is_listed(letters: Letters) -> None:
    letters.has_a_reader()
    retried, discarded = letters.add(COMMAND), letters.add(f"{'e' * 20}:{'d' * 20}")
    await letters.post(f"{retried}/retry", document={"reason": "the account is there now"})
    await letters.post(f"{discarded}/discard", document={"reason": "a test"})
    await letters.post(f"{discarded}/discard", 404)
    answer = as_described(await letters.client.get("/_oncegate/audit/", headers=OPERATOR)).json()
    assert [(line["what"], line["done"], line["reason"]) for line in answer["lines"]] == [
        (f"1 dead letters of {discarded}", "discarded", "a test"),
        (f"1 dead letters of {retried}", "retried", "the account is there now"),
    ]


@pytest.mark.parametrize("by_way_of", ["gateway", "command line"])
async def test_of_many_dead_letters_the_newest_are_looked_at_for_a_command_and_that_is_said(
    letters: Letters,
    submitted: Submitted,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    by_way_of: str,
) -> None:
    monkeypatch.setattr(dead_letters, "MOST_SCANNED", 3)
    letters.has_a_reader()
    old = letters.add(COMMAND)
    newer = [letters.add(f"{number:020d}:{'d' * 20}") for number in range(3)]
    where = ["--cache", redis_server.url, "--namespace", submitted.namespace, "--consumer", "billing", "--json"]

    async def changed(what: str, identifier: str) -> Any:
        """The answer; where there is none, why."""
        if by_way_of == "gateway":
            path = f"{LETTERS}{identifier}/{what}?stream=commands"
            answer = as_described(await submitted.client.post(path, headers=OPERATOR)).json()
            return answer.get("detail", answer)
        done = await asyncio.to_thread(invoke, "commands", what, identifier, *where, ONCEGATE_CACHE_TIMEOUT="10")
        return done.stderr if done.returncode else json.loads(done.stdout)

    for what in ("retry", "discard"):
        assert "and there are others: give the dead letter's own id" in await changed(what, COMMAND)
    if by_way_of == "gateway":
        shown = await letters.get(f"{0:020d}:{'d' * 20}", stream="commands")
        assert ([each["id"] for each in shown["dead_letters"]], shown["complete"]) == ([newer[0]], False)
        assert shown["dead_letters"][0]["bytes"] == len(b'{"secret": 1}')
    done = await changed("discard", f"{0:020d}:{'d' * 20}")
    assert ([each["id"] for each in done["discarded"]], done["complete"]) == ([newer[0]], False)
    done = await changed("retry", old)
    assert ([each["id"] for each in done["retried"]], done["complete"]) == ([old], True)
    done = await changed("retry", f"{2:020d}:{'d' * 20}")
    assert ([each["id"] for each in done["retried"]], done["complete"]) == ([newer[2]], True), "those are all now"


async def test_of_one_command_s_many_dead_letters_some_are_found_and_that_is_said(
    letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "MOST_OF_ONE", 2)
    ids = [letters.add(COMMAND) for _ in range(3)]
    shown = await letters.get(COMMAND, stream="commands")
    assert ([each["id"] for each in shown["dead_letters"]], shown["complete"]) == (ids[1:], False)

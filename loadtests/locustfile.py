"""Users of an idempotent API, in a mix as real clients make it. Each answer is checked: a wrong replay is a failure.

Against any gateway whose upstream answers POST with a new 2xx each time, `oncegate demo` for one:

    .venv/bin/locust -f loadtests/locustfile.py --host http://127.0.0.1:8080                   # web UI: http://127.0.0.1:8089
    .venv/bin/locust -f loadtests/locustfile.py --host http://127.0.0.1:8080 --headless \\
        --users 50 --spawn-rate 25 --run-time 60s --html loadtests/results/locust.html

The exit code is 1 where any answer was wrong. ``--path`` is the path that is posted to (/payments). Locust is far too slow to
measure rates with: that is what `scripts/bench` is for.
"""

import json
import random
import uuid
from argparse import ArgumentParser
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gevent
from locust import FastHttpUser, between, events, task

REMEMBERED = 100
"""Requests that a user may still send again."""
DUPLICATES = 3
WAIT_SECONDS = 10


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]  # Locust does not annotate it
def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--path", default="/payments", help="The path to post to")


@dataclass(frozen=True)
class Sent:
    """A first request, and what came back for it."""

    key: str
    body: bytes
    status: int
    content: bytes
    content_type: str


class Client(FastHttpUser):
    """One caller, with an Authorization of its own, who sends one payment after the other and retries some of them."""

    wait_time = between(0.02, 0.2)

    def on_start(self) -> None:
        """Become a caller."""
        self.caller = f"Bearer load-{uuid.uuid4().hex}"
        self.sent: deque[Sent] = deque(maxlen=REMEMBERED)
        self.path = self.environment.parsed_options.path

    @task(50)
    def first(self) -> None:
        """A new key: executed, marked as stored, remembered."""
        key, body = _key(), _body()
        with self._post("first request", key, body) as answer:
            wrong = _not_executed(answer, key)
            if wrong:
                answer.failure(wrong)
            else:
                content_type = answer.headers.get("content-type", "")
                self.sent.append(Sent(key, body, answer.status_code, answer.content, content_type))

    @task(25)
    def retry(self) -> None:
        """The same request again: the same answer, byte for byte, and marked as a replay."""
        if self.sent:
            before = random.choice(self.sent)
            with self._post("retry", before.key, before.body) as answer:
                wrong = _not_replayed(answer, before)
                if wrong:
                    answer.failure(wrong)

    @task(5)
    def concurrent_duplicates(self) -> None:
        """One new request several times at once, each ready to wait: one is executed, all get the same."""
        key, body = _key(), _body()
        found: list[tuple[int, bytes, bool]] = []

        def send() -> None:
            with self._post("concurrent duplicate", key, body, Prefer=f"wait={WAIT_SECONDS}") as answer:
                found.append((answer.status_code, answer.content, _is_replay(answer)))
                if not _is_success(answer):
                    answer.failure(f"{answer.status_code} in spite of Prefer: wait")
                elif len({content for _, content, _ in found}) > 1:
                    answer.failure("concurrent duplicates got different answers")
                elif len(found) == DUPLICATES and sum(replay for _, _, replay in found) != DUPLICATES - 1:
                    answer.failure("not exactly one of several concurrent duplicates was executed")

        gevent.joinall([gevent.spawn(send) for _ in range(DUPLICATES)])

    @task(5)
    def mismatch(self) -> None:
        """A used key with another payload: refused, 422."""
        if self.sent:
            with self._post("mismatch", random.choice(self.sent).key, _body()) as answer:
                if answer.status_code == 422 and _code(answer) == "key-reused":
                    answer.success()
                else:
                    answer.failure(f"{answer.status_code} for a used key with another payload, not 422 key-reused")

    @task(3)
    def other_caller(self) -> None:
        """Another caller's request with the same key and payload: executed, with nothing of the first one's in its answer."""
        if self.sent:
            before = random.choice(self.sent)
            stranger = f"Bearer load-{uuid.uuid4().hex}"
            with self._post("other caller, same key", before.key, before.body, Authorization=stranger) as answer:
                wrong = _not_executed(answer, before.key)
                if wrong or answer.content == before.content:
                    answer.failure(wrong or "another caller's answer")

    @task(12)
    def pass_through(self) -> None:
        """No key: executed, and neither stored nor replayed."""
        with self._post("no key", None, _body()) as answer:
            if not _is_success(answer) or _is_replay(answer):
                answer.failure(f"{answer.status_code}, replay: {_is_replay(answer)}, without a key")
            elif answer.headers.get("cache-status") != "oncegate; fwd=bypass":
                answer.failure("not marked as a request without enforcement")

    def _post(self, name: str, key: str | None, body: bytes, **headers: str) -> Any:
        sent = {"Content-Type": "application/json", "Authorization": self.caller, **headers}
        if key is not None:
            sent["Idempotency-Key"] = key
        return self.client.post(self.path, data=body.decode(), headers=sent, name=name, catch_response=True)


def _key() -> str:
    return str(uuid.uuid4())


def _body() -> bytes:
    return json.dumps({"amount": random.randint(1, 10_000_000), "order": uuid.uuid4().hex}).encode()


def _is_success(answer: Any) -> bool:
    return 200 <= int(answer.status_code) < 300


def _is_replay(answer: Any) -> bool:
    headers: Mapping[str, str] = answer.headers or {}
    return headers.get("idempotent-replayed") == "true"


def _code(answer: Any) -> object:
    try:
        return json.loads(answer.content).get("code")
    except (ValueError, AttributeError):
        return None


def _not_executed(answer: Any, key: str) -> str | None:
    """What is wrong with the answer to a first request."""
    if not _is_success(answer):
        return f"{answer.status_code} for a first request: {(answer.text or answer.error)!s:.200}"
    if _is_replay(answer):
        return "a first request was answered with a replay"
    if answer.headers.get("idempotency-key") != key:
        return "the key is not echoed"
    if answer.headers.get("cache-status", "").partition("; ttl=")[0] != "oncegate; fwd=miss; stored":
        return f"not marked as stored: {answer.headers.get('cache-status')}"
    return None


def _not_replayed(answer: Any, before: Sent) -> str | None:
    """What is wrong with the answer to a retry."""
    if answer.status_code != before.status:
        return f"{answer.status_code} for a retry of a {before.status}"
    if answer.content != before.content or answer.headers.get("content-type", "") != before.content_type:
        return "a retry's answer differs from its first request's"
    if not _is_replay(answer) or not answer.headers.get("cache-status", "").startswith("oncegate; hit; ttl="):
        return "a retry was executed, or is not marked as a replay"
    return None

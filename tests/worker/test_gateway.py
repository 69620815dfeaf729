"""From the caller to the effect: commands that a gateway has accepted, through its own death too.

Rules of docs/contract.md: R8.9, R8.14, R8.18, R8.22, R8.23.
"""

import gzip
from typing import Any, cast

import httpx
import pytest

from oncegate.cache.record import State
from testing.waiting import wait_until
from tests.worker.shop import DEADLINE, Shop

ROUTES = [{"path": "/bookings", "mode": "async", "on_missing_key": "reject"}]


def post(url: str, key: str, **fields: str) -> httpx.Response:
    headers = {"idempotency-key": key, "content-type": "application/json", **fields}
    return httpx.post(url + "/bookings?a=1", content=b'{"n":1}', headers=headers, timeout=DEADLINE)


def until_forgotten(shop: Shop, key: str) -> None:
    wait_until(lambda: not shop.redis.exists(shop.key(key)), "the submission's time is over")


def test_what_was_accepted_and_never_processed_is_processed_the_first_time(shop: Shop) -> None:
    _, url = shop.serve(ROUTES)
    answer = post(url, "k")
    assert answer.status_code == 202
    assert shop.submission("k").state is State.SUCCEEDED  # of having been accepted
    assert (shop.state("k"), shop.effects("k")) == ("absent", 0)
    shop.work()
    assert (shop.state("k"), shop.effects("k")) == ("succeeded", 1)
    again = post(url, "k")
    assert (again.status_code, again.content) == (202, answer.content)
    shop.done()
    assert shop.effects("k") == 1


@pytest.mark.parametrize("accepted_at_ms", [999999999999999, 253402300800000, -1])
def test_an_entry_of_a_year_that_can_not_be_written_is_processed_and_told_of(shop: Shop, accepted_at_ms: int) -> None:
    """Anybody may have written it. Its submission's record is made by the worker, and shown by the gateway."""
    entry = shop.submit("k", accepted_at_ms=accepted_at_ms)
    _, url = shop.serve(ROUTES)
    shop.work()
    with httpx.Client(base_url=f"{url}/_oncegate/", timeout=DEADLINE, verify=False) as operator:
        shown = operator.get(f"commands/{shop.command('k').command}").json()
        assert (shown["status"], shown["position"]) == ("succeeded", entry.decode())
        assert operator.get("readyz").json()["cache"] == "available"
    made = shop.submission("k").response
    assert made is not None
    assert 0 < made.completed_at_ms < 253402300800000


def submit_until_anew(url: str, answer: httpx.Response) -> httpx.Response:
    """The next answer of another acceptance."""

    def anew() -> httpx.Response | None:
        again = post(url, "k")
        assert again.status_code == 202
        return again if again.json()["position"] != answer.json()["position"] else None

    return cast(httpx.Response, wait_until(anew, "it is accepted anew"))


@pytest.mark.parametrize("waits", [False, True], ids=["processed at once", "processed late"])
def test_what_is_accepted_anew_is_processed_anew(shop: Shop, waits: bool) -> None:
    """The execution ends later than the submission: its record must not outlive it."""
    short = {"idempotency__ttl": 2}
    _, url = shop.serve(ROUTES, settings=short)
    answer = post(url, "k")
    if waits:
        until_forgotten(shop, "k")
    shop.work(settings={"idempotency__ttl": 4})
    again = submit_until_anew(url, answer)
    wait_until(lambda: shop.effects("k") == 2, "it is processed again")
    assert again.json()["command"] == answer.json()["command"]
    if waits:
        return
    status = httpx.get(url + again.headers["location"], timeout=DEADLINE).json()
    assert status["position"] == again.json()["position"]


def test_a_submission_that_ended_before_its_execution_is_answered_as_it_was(shop: Shop) -> None:
    _, url = shop.serve(ROUTES, settings={"idempotency__ttl": 1})
    answer = post(url, "k")
    until_forgotten(shop, "k")
    shop.work()
    assert shop.submission("k").submission
    again = post(url, "k")
    kept = ("location", "content-type", "content-length")
    assert (again.status_code, again.content) == (202, answer.content)
    assert [again.headers[name] for name in kept] == [answer.headers[name] for name in kept]
    assert again.headers["idempotent-replayed"] == "true"


def test_a_success_stays_one_for_as_long_as_its_submission_is_answered(shop: Shop) -> None:
    _, url = shop.serve(ROUTES, settings={"idempotency__ttl": 600})
    answer = post(url, "k")
    shop.work(settings={"idempotency__ttl": 2})
    assert 590_000 < shop.redis.pttl(shop.place("k")) < shop.redis.pttl(shop.key("k"))
    assert httpx.get(url + answer.headers["location"], timeout=DEADLINE).json()["status"] == "succeeded"


def test_a_dead_letter_s_submission_is_kept_for_as_long_as_its_execution(shop: Shop) -> None:
    _, url = shop.serve(ROUTES, settings={"idempotency__ttl": 2})
    httpx.post(url + "/bookings", content=b'{"do":"reject"}', headers={"idempotency-key": "k"}, timeout=DEADLINE)
    shop.work(settings={"idempotency__ttl": 600})
    assert 590_000 < shop.redis.pttl(shop.place("k")) < shop.redis.pttl(shop.key("k"))


def test_a_gateway_killed_between_append_and_record_leaves_two_copies_and_one_effect(shop: Shop) -> None:
    mortal, url = shop.serve(ROUTES, dies_at="before-accepted")
    with pytest.raises(httpx.TransportError):
        post(url, "k")
    mortal.dies()
    assert shop.submission("k").state is State.IN_FLIGHT
    _, url = shop.serve(ROUTES)
    answer: httpx.Response = wait_until(
        lambda: post(url, "k").is_success and post(url, "k"), "the caller's retry is accepted"
    )
    assert answer.status_code == 202
    assert shop.redis.xlen(shop.stream) == 2
    shop.work()
    assert shop.effects("k") == 1


def test_a_handler_gets_what_the_request_brought(shop: Shop) -> None:
    _, url = shop.serve(ROUTES)
    post(url, "k", **{"x-correlation-id": "trace-1"})
    shop.work("return_context")
    assert shop.response("k").body == b'["POST","/bookings?a=1","application/json","trace-1","k",1,{"n":1}]'


def test_what_makes_a_body_readable_and_what_was_named_travels_with_a_command(shop: Shop) -> None:
    _, url = shop.serve(ROUTES, settings={"idempotency__forward_request_headers": ["X-User"]})
    headers = {
        "idempotency-key": '"a \\"key\\""',
        "content-type": "application/json",
        "content-encoding": "gzip",
        "content-language": "de",
        "x-user": "alice",
        "x-other": "not named",
        "authorization": "Bearer secret",
        "cookie": "session=secret",
    }
    answer = httpx.post(url + "/bookings", content=gzip.compress(b'{"n":1}'), headers=headers, timeout=DEADLINE)
    assert answer.status_code == 202
    ((_, fields),) = cast(Any, shop.redis.xrange(shop.stream))
    assert b"secret" not in b" ".join(fields.values())
    shop.work("return_request")
    command = answer.json()["command"]
    result = httpx.get(url + answer.headers["location"], headers=headers, timeout=DEADLINE).json()["result"]["body"]
    names = ("idempotency-key", "content-type", "content-encoding", "content-language", "x-user")
    assert sorted(result[0]) == sorted([name, headers[name]] for name in names)
    assert result[1:] == ["/bookings", command.partition(":")[2], '{"n":1}']


def test_an_encoded_body_is_not_taken_for_what_it_is_labelled_as(shop: Shop) -> None:
    _, url = shop.serve(ROUTES)
    headers = {"idempotency-key": "k", "content-type": "application/json", "content-encoding": "gzip"}
    httpx.post(url + "/bookings", content=gzip.compress(b'{"n":1}'), headers=headers, timeout=DEADLINE)
    shop.work()
    (letter,) = shop.letters()
    assert (letter["dead.reason"], shop.effects("k")) == ("rejected", 0)
    assert "encoded (gzip)" in letter["dead.error"]


def test_a_worker_that_forwards_to_the_gateway_that_accepted_loses_nothing(shop: Shop) -> None:
    _, url = shop.serve(ROUTES)
    assert post(url, "k").status_code == 202
    shop.work(forward=url)
    assert shop.state("k") == "failed"
    (letter,) = shop.letters()
    assert "not the service behind it" in " ".join(letter.values())

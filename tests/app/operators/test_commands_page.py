"""What became of a command: shown to whom it belongs, and as nothing else than what its two records say.

Rules of docs/contract.md: R8.10, R8.11, R8.13, R11.5.
"""

import asyncio
from uuid import uuid4

import pytest

from oncegate.cache.record import ClaimRequest, Record, State, StoredResponse
from oncegate.middleware.consumers.delivery import Action, Delivery
from oncegate.middleware.rules.keys.key import execution_key
from testing.asgi_client import Client
from testing.served import served
from testing.servers import RedisServer
from tests.app.described import assert_described
from tests.app.submitted import ALICE, ROUTES, STATUS, TIMEOUT, TOKEN, Submitted, serving

# -- the life of a command


async def test_an_accepted_command_says_so_with_its_position(submitted: Submitted) -> None:
    answer = await submitted.submit()
    assert await submitted.status(answer.headers["location"]) == {
        "command": answer.json()["command"],
        "status": "accepted",
        "position": answer.json()["position"],
    }


async def test_a_command_is_followed_from_its_first_attempt_to_its_result(submitted: Submitted) -> None:
    answer = await submitted.submit()
    identifier, location = answer.json()["command"], answer.headers["location"]
    delivery = await submitted.delivery(identifier)

    begun = await submitted.consumer.begin(delivery)
    shown = await submitted.status(location)
    assert (shown["status"], shown["attempt"]) == ("in-flight", 1)

    await begun.execution.fail(ValueError("no such account"))
    shown = await submitted.status(location)
    assert (shown["status"], shown["attempt"]) == ("failed", 1)
    assert shown["error"] == {"type": "ValueError", "message": "no such account"}
    assert "tried again" in shown["detail"]

    begun = await submitted.consumer.begin(delivery)
    assert (await submitted.status(location))["attempt"] == 2
    await begun.execution.unknown("ran into its time-out")
    shown = await submitted.status(location)
    assert (shown["status"], shown["attempt"]) == ("unknown", 2)
    assert "taken over" in shown["detail"]

    begun = await submitted.consumer.begin(delivery)
    await begun.execution.succeed(b'{"rows": 12345678901234567890}')
    whole = await submitted.client.get(location, headers=ALICE)
    shown = whole.json()
    assert (shown["status"], shown["attempt"]) == ("succeeded", 3)
    assert (shown["result"]["status"], shown["result"]["body"]) == (200, {"rows": 12345678901234567890})
    assert b"12345678901234567890" in whole.content, "no digit of a result is lost"
    assert shown["position"] == answer.json()["position"]
    assert "error" not in shown


async def test_a_command_that_used_up_its_attempts_is_dead_lettered(submitted: Submitted) -> None:
    answer = await submitted.submit()
    delivery = await submitted.delivery(answer.json()["command"])
    for _ in range(3):
        begun = await submitted.consumer.begin(delivery)
        await begun.execution.fail("the printer is on fire")
    shown = await submitted.status(answer.headers["location"])
    assert (shown["status"], shown["attempt"]) == ("dead-lettered", 3)
    assert shown["error"] == {"type": "Error", "message": "the printer is on fire"}
    assert (await submitted.submit()).content == answer.content, "a retry still gets the same 202"


async def test_an_execution_whose_lease_has_lapsed_is_unknown_and_will_be_taken_over(submitted: Submitted) -> None:
    answer = await submitted.submit()
    identifier = answer.json()["command"]
    delivery = await submitted.delivery(identifier)
    await _claim(submitted, identifier, delivery.fingerprint or b"", lease_ms=1)
    shown = await submitted.status(answer.headers["location"])
    assert (shown["status"], shown["attempt"]) == ("unknown", 1)
    assert "taken over" in shown["detail"]


async def test_what_a_forwarded_command_got_is_its_result(submitted: Submitted) -> None:
    answer = await submitted.submit()
    begun = await submitted.consumer.begin(await submitted.delivery(answer.json()["command"]))
    response = StoredResponse(201, ((b"content-type", b"application/octet-stream"),), b"\xff\x00", 1)
    await begun.execution.succeed(response)
    result = (await submitted.status(answer.headers["location"]))["result"]
    assert (result["status"], result["body"], result["body_encoding"]) == (201, "/wA=", "base64")
    assert result["headers"] == [["content-type", "application/octet-stream"]]


async def test_an_error_of_another_form_is_told_as_it_is(submitted: Submitted) -> None:
    answer = await submitted.submit()
    identifier = answer.json()["command"]
    fingerprint = (await submitted.delivery(identifier)).fingerprint or b""
    await _claim(submitted, identifier, fingerprint, lease_ms=60_000)
    key = execution_key(f"{submitted.namespace}:{identifier}", "billing")
    response = StoredResponse(422, ((b"content-type", b"text/plain"),), b"no", 1)
    await submitted.cache.complete(
        key,
        Record(token=b"t" * 16, fingerprint=fingerprint, attempt=1, state=State.FAILED, response=response),
        ttl_ms=60_000,
    )
    shown = await submitted.status(answer.headers["location"])
    assert (shown["status"], shown["error"]["status"], shown["error"]["body"]) == ("failed", 422, "no")


async def test_a_status_outlives_the_submission_record(submitted: Submitted, redis_server: RedisServer) -> None:
    answer = await submitted.submit()
    identifier = answer.json()["command"]
    begun = await submitted.consumer.begin(await submitted.delivery(identifier))
    await begun.execution.succeed(b"1")
    redis_server.command("DEL", f"{submitted.namespace}:{identifier}")
    shown = await submitted.status(answer.headers["location"])
    assert (shown["status"], shown["result"]["body"], "position" in shown) == ("succeeded", 1, False)


async def test_a_command_whose_key_the_consumer_has_for_another_payload_is_never_processed(
    submitted: Submitted,
) -> None:
    answer = await submitted.submit()
    identifier = answer.json()["command"]
    await _claim(submitted, identifier, b"f" * 16, lease_ms=60_000)
    assert (await submitted.consumer.begin(await submitted.delivery(identifier))).action is Action.DEAD_LETTER
    shown = await submitted.status(answer.headers["location"])
    assert (shown["status"], shown["error"]["type"]) == ("dead-lettered", "Mismatch")
    assert "new key" in shown["detail"]
    assert "attempt" not in shown


async def test_of_several_consumers_the_one_with_this_payload_counts(submitted: Submitted) -> None:
    answer = await submitted.submit()
    identifier = answer.json()["command"]
    await _claim(submitted, identifier, b"f" * 16, lease_ms=60_000)
    other = execution_key(f"{submitted.namespace}:{identifier}", "tenants")
    fingerprint = (await submitted.delivery(identifier)).fingerprint or b""
    await submitted.cache.claim(
        other, ClaimRequest(token=b"t" * 16, fingerprint=fingerprint, lease_ms=60_000, retention_ms=60_000)
    )
    assert (await submitted.status(answer.headers["location"]))["status"] == "in-flight"


async def _claim(submitted: Submitted, identifier: str, fingerprint: bytes, *, lease_ms: int) -> None:
    key = execution_key(f"{submitted.namespace}:{identifier}", "billing")
    await submitted.cache.claim(
        key, ClaimRequest(token=b"t" * 16, fingerprint=fingerprint, lease_ms=lease_ms, retention_ms=600_000)
    )
    if lease_ms == 1:
        await asyncio.sleep(0.01)


# -- to whom


async def _gone(submitted: Submitted, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    answer = await submitted.client.get(path, headers=headers | {"x-request-id": "the-same"})
    assert_described(answer, STATUS[str(answer.status_code)])
    return answer.status_code, answer.content


async def test_only_its_caller_and_operators_see_a_command_and_it_does_not_exist_for_others(
    submitted: Submitted,
) -> None:
    location = (await submitted.submit()).headers["location"]
    # An id that Alice could have had, and nobody has.
    absent = await _gone(submitted, "/_oncegate/commands/" + "x" * 20 + ":" + location[-20:], ALICE)
    assert absent[0] == 404
    for headers in (
        {"authorization": "Bearer mallory"},
        {"authorization": "bearer alice"},
        {},
        {"authorization": "Bearer"},
        {"x-tenant": "Bearer alice"},
        {"authorization": f"Basic {TOKEN}"},
    ):
        assert await _gone(submitted, location, headers) == absent
    assert (await submitted.status(location, authorization=f"Bearer {TOKEN}"))["status"] == "accepted"


async def test_without_a_token_there_are_no_operators(redis_server: RedisServer) -> None:
    namespace = uuid4().hex
    async with served(
        "http://127.0.0.1:1", cache=redis_server.url, namespace=namespace, routes=ROUTES, cache_timeout=TIMEOUT
    ) as (client, _):
        headers = {"idempotency-key": "k-1", "prefer": "respond-async", **ALICE}
        location = (await client.post("/reports", headers=headers)).headers["location"]
        assert (await client.get(location, headers={"authorization": "Bearer"})).status_code == 404
        assert (await client.get(location, headers=ALICE)).status_code == 200


async def test_the_caller_is_who_the_routes_scope_says(submitted: Submitted) -> None:
    mine = {"x-tenant": "t-1", "x-user": "u-1"}
    location = (await submitted.submit("/tenants", **mine)).headers["location"]
    assert (await submitted.status(location, **mine))["status"] == "accepted"
    assert (await submitted.status(location, **mine, authorization="Bearer new"))["status"] == "accepted"
    for other in ({"x-tenant": "t-1"}, {"x-tenant": "t-1", "x-user": "u-2"}, ALICE, {}):
        assert (await _gone(submitted, location, other))[0] == 404


async def test_callers_without_a_name_are_one_caller(submitted: Submitted) -> None:
    location = (await submitted.submit("/anonymous", **{"x-none": "1"})).headers["location"]
    assert (await submitted.status(location, **{"x-other": "2"}))["status"] == "accepted"


async def test_operators_see_of_a_record_that_it_is_a_submission(submitted: Submitted) -> None:
    identifier = (await submitted.submit()).json()["command"]
    shown = await submitted.client.get(f"/_oncegate/records/{identifier}", headers={"authorization": f"Bearer {TOKEN}"})
    assert (shown.json()["submission"], shown.json()["state"]) == (True, "succeeded")


async def test_a_message_that_nobody_has_submitted_is_nobodys_command(submitted: Submitted) -> None:
    """It came by a broker, to a consumer that a route names too, and without a caller: as have callers without a name."""
    begun = await submitted.consumer.begin(Delivery("k-9", b"{}"))
    await begun.execution.succeed(b'"secret"')
    status, body = await _gone(submitted, f"/_oncegate/commands/{begun.record}", {"x-none": "1"})
    assert (status, b"secret" in body) == (404, False)


async def test_a_request_that_was_executed_is_no_command(submitted: Submitted) -> None:
    answer = await submitted.client.post("/reports", headers={"idempotency-key": "k-2", **ALICE})
    assert answer.status_code == 502  # nobody is there, but it is enforced
    identifier = answer.json()["record"]
    key = f"{submitted.namespace}:{identifier}"
    await submitted.cache.complete(
        key,
        Record(
            token=b"t" * 16,
            fingerprint=b"f" * 16,
            attempt=1,
            state=State.SUCCEEDED,
            response=StoredResponse(201, (), b"secret", 1),
        ),
        ttl_ms=60_000,
    )
    for headers in (ALICE, {"authorization": f"Bearer {TOKEN}"}):
        status, body = await _gone(submitted, f"/_oncegate/commands/{identifier}", headers)
        assert (status, b"secret" in body) == (404, False)


async def test_a_submission_that_was_not_accepted_yet_is_no_command(submitted: Submitted) -> None:
    answer = await submitted.submit()
    identifier = answer.json()["command"]
    other = "z" * 20 + identifier[20:]
    await submitted.cache.claim(
        f"{submitted.namespace}:{other}",
        ClaimRequest(token=b"t" * 16, fingerprint=b"f" * 16, lease_ms=60_000, retention_ms=60_000, submission=True),
    )
    assert (await _gone(submitted, f"/_oncegate/commands/{other}", ALICE))[0] == 404
    await _claim(submitted, other, b"f" * 16, lease_ms=60_000)  # a copy from before is being processed
    assert (await submitted.status(f"/_oncegate/commands/{other}"))["status"] == "in-flight"


# -- HTTP


@pytest.mark.parametrize(
    "path", ["", "/", "/x", "/" + "x" * 41, "/../records", "/" + "x" * 20 + ":" + "y" * 20 + "/more"]
)
async def test_what_is_no_id_is_404(submitted: Submitted, path: str) -> None:
    client = await Client("GET", b"/_oncegate/commands" + path.encode()).call(submitted.gateway)
    assert client.status == 404


async def test_head_and_other_methods(submitted: Submitted) -> None:
    location = (await submitted.submit()).headers["location"]
    head = await submitted.client.head(location, headers=ALICE)
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) > 0
    post = await submitted.client.post(location, headers=ALICE)
    assert (post.status_code, post.headers["allow"]) == (405, "GET, HEAD")


async def test_without_an_asynchronous_route_there_are_no_commands(redis_server: RedisServer) -> None:
    async with served("http://127.0.0.1:1", cache=redis_server.url) as (client, _):
        assert (await client.get("/_oncegate/commands/" + "x" * 20 + ":" + "y" * 20)).status_code == 404


async def test_a_cache_that_is_away_is_503(redis_server: RedisServer) -> None:
    with RedisServer() as server:
        async with serving(server) as there:
            location = (await there.submit()).headers["location"]
            server.stop()
            answer = await there.client.get(location, headers=ALICE)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert_described(answer, STATUS["503"])
            stranger = await there.client.get(location)
            assert stranger.status_code == 404, "a stranger learns nothing of it, and costs nothing"


async def test_a_damaged_record_is_500(submitted: Submitted, redis_server: RedisServer) -> None:
    answer = await submitted.submit()
    redis_server.command("SET", f"{submitted.namespace}:{answer.json()['command']}", b"damaged", "PX", 60_000)
    shown = await submitted.client.get(answer.headers["location"], headers=ALICE)
    assert shown.status_code == 500
    assert_described(shown, STATUS["500"])


async def test_with_a_port_of_the_operators_commands_stay_where_callers_are(redis_server: RedisServer) -> None:
    async with serving(redis_server, ops_port=65000, public=[]) as there:
        location = (await there.submit()).headers["location"]
        assert (await there.status(location))["status"] == "accepted"
        assert (await there.client.get("/_oncegate/metrics")).status_code == 404


async def test_guesses_at_an_operators_token_are_counted_and_logged_as_at_records(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(redis_server) as submitted:
        location = (await submitted.submit()).headers["location"]
        for credential in ("Bearer a-guess", "bearer another", "Basic a-guess", None):
            headers = {} if credential is None else {"authorization": credential}
            assert (await submitted.client.get(location, headers=headers)).status_code == 404
        for token in (ALICE["authorization"], f"Bearer {TOKEN}"):
            await submitted.status(location, authorization=token)
        operator = {"authorization": f"Bearer {TOKEN}"}
        shown = (await submitted.client.get("/_oncegate/metrics", headers=operator)).text
        assert "oncegate_logins_refused_total 2.0" in shown, "those that carry a bearer token, and show nothing by it"
    lines = [record.getMessage() for record in caplog.records if record.name == "oncegate.operators"]
    assert lines == ["a log-in of an operator was refused: wrong or no token, from 127.0.0.1"] * 2
    assert "guess" not in caplog.text

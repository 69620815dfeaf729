"""What ``[cors]`` adds, and to which answers; tests/foreign/test_browser.py has a browser read them.

Rules of docs/contract.md: R9.17.
"""

from typing import Any

import pytest
from pydantic import ValidationError

from oncegate.app.settings.gateway import GatewaySettings
from testing.served import served
from testing.servers import free_port
from testing.upstreams import Upstream, answering

SHOP = "https://shop.example"
OTHER = "https://other.example"
PREFIX = "access-control-"
STORED = (
    b"HTTP/1.1 201 Created\r\naccess-control-allow-origin: https://first.example\r\n"
    b"access-control-allow-credentials: true\r\naccess-control-expose-headers: x-own\r\ncontent-length: 2\r\n\r\nok"
)


def cross_origin(answer: Any) -> dict[str, str]:
    names = [name for name in answer.headers if name.startswith(PREFIX) or name == "vary"]
    return {name.removeprefix(PREFIX): answer.headers[name] for name in names}


EXPOSED = "Idempotency-Key, Idempotent-Replayed, Cache-Status, Retry-After, Preference-Applied, Location, X-Key"
NAMED = {"allow-origin": SHOP, "expose-headers": EXPOSED, "vary": "origin"}


@pytest.mark.parametrize(
    ("cors", "origin", "expected"),
    [
        ({"origins": [SHOP]}, SHOP, NAMED),
        ({"origins": [SHOP]}, OTHER, {"vary": "origin"}),
        ({"origins": [SHOP]}, None, {}),
        ({"origins": [SHOP], "credentials": True}, SHOP, NAMED | {"allow-credentials": "true"}),
        ({"origins": ["*"]}, OTHER, {"allow-origin": "*", "expose-headers": EXPOSED}),
        ({}, SHOP, {}),
    ],
    ids=["named", "another", "no origin", "credentials", "any", "no table"],
)
async def test_problems_carry_what_lets_scripts_read_them(
    cors: dict[str, Any], origin: str | None, expected: dict[str, str]
) -> None:
    fields = {} if origin is None else {"Origin": origin}
    nowhere = f"http://127.0.0.1:{free_port()}"
    routes = [{"path": "/y", "header": "X-Key"}]
    async with served(nowhere, cors=cors, routes=routes) as (client, _):
        unkeyed = await client.get("/x", headers=fields)
        keyed = await client.post("/x", headers=fields | {"Idempotency-Key": "k"}, content=b"a")
        refused = await client.post("/x", headers=fields | {"Idempotency-Key": '"'})
        large = await client.post("/x", headers=fields | {"Idempotency-Key": "l"}, content=b"a" * 1048577)
        upgrade = await client.put("/x", headers=fields | {"Upgrade": "websocket", "Connection": "upgrade"})
    answers = [unkeyed, keyed, refused, large, upgrade]
    assert [answer.status_code for answer in answers] == [502, 502, 400, 413, 501]
    assert [cross_origin(answer) for answer in answers] == [expected] * len(answers)


async def test_a_replay_is_for_the_origin_that_asks_and_no_forwarded_response_is_changed() -> None:
    async with Upstream(answering(STORED)) as upstream, served(upstream.url, cors={"origins": [SHOP]}) as (client, _):
        answers = [
            await client.post("/x", headers={"Idempotency-Key": "k", **fields}, content=b"a")
            for fields in ({"Origin": SHOP}, {"Origin": SHOP}, {"Origin": OTHER}, {})
        ]
        unkeyed = await client.post("/x", headers={"Origin": SHOP})
    upstreams = {"allow-origin": "https://first.example", "allow-credentials": "true", "expose-headers": "x-own"}
    assert [cross_origin(answers[number]) for number in (0, 3)] == [upstreams] * 2
    assert cross_origin(answers[2]) == upstreams | {"vary": "origin"}, "another origin would get another answer"
    assert cross_origin(unkeyed) == upstreams
    replay = cross_origin(answers[1])
    assert (replay["allow-origin"], replay["vary"]) == (SHOP, "origin")
    assert "allow-credentials" not in replay
    assert replay["expose-headers"].startswith("x-own, Idempotency-Key, Idempotent-Replayed")


async def test_preflights_are_the_upstreams() -> None:
    async with Upstream(answering(STORED)) as upstream, served(upstream.url, cors={"origins": [SHOP]}) as (client, _):
        await client.options("/x", headers={"Origin": SHOP, "Access-Control-Request-Method": "POST"})
        assert upstream.arrivals == 1


@pytest.mark.parametrize(
    "cors",
    [
        {"origins": ["shop.example"]},
        {"origins": ["https://shop.example/"]},
        {"origins": ["https://Shop.example"]},
        {"origins": ["*"], "credentials": True},
        {"origin": [SHOP]},
    ],
)
def test_what_could_not_mean_anything_is_refused(cors: Any) -> None:
    with pytest.raises(ValidationError):
        GatewaySettings(upstream="http://127.0.0.1:9", cors=cors)

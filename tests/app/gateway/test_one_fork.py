"""Each request is judged once, whichever driver goes on with it."""

from typing import Any

import pytest

from oncegate.middleware.http.exchange import Exchange
from testing.upstreams import Upstream, answering
from tests.app.fast_path import CREATED, gateway_at, keyed

# What goes by the fast path is to stay there until the test says otherwise.
pytestmark = [pytest.mark.usefixtures("unhurried"), pytest.mark.interpreted]


@pytest.mark.parametrize("fast_path", [True, False], ids=["fast path", "without"])
@pytest.mark.parametrize(("size", "status"), [(10, b"201"), (11, b"413")], ids=["within the cap", "over the cap"])
async def test_a_request_with_a_key_is_identified_once(
    size: int, status: bytes, fast_path: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    identified: list[str] = []
    identify = Exchange.identify

    def counted(exchange: Exchange, *given: Any, **named: Any) -> Any:
        identified.append(exchange.scope["path"])
        return identify(exchange, *given, **named)

    monkeypatch.setattr(Exchange, "identify", counted)
    rules = {"max_request_body": 10}
    async with (
        Upstream(answering(CREATED)) as upstream,
        gateway_at(upstream.url, idempotency=rules, fast_path=fast_path) as (talk, _, _),
    ):
        assert (await talk.exchange(keyed(body=b"x" * size))).split(b" ")[1] == status
        assert identified == ["/"]

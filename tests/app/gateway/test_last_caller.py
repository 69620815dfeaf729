"""What is kept of a connection's last request never makes another caller's of the next one, nor another route's.

Rules of docs/contract.md: R1.3.
"""

import pytest

from testing.upstreams import Upstream, answering
from tests.app.fast_path import CREATED, gateway_at, keyed, talking

pytestmark = [pytest.mark.usefixtures("unhurried"), pytest.mark.both_loops]

ROUTES = [{"path": "/tenants/*", "scope": ["header:X-Tenant"]}]


async def test_callers_who_share_a_connection_keep_their_records_apart() -> None:
    def sent(caller: str, path: str, tenant: str) -> bytes:
        return keyed("k", path=path, authorization=caller, x_tenant=tenant)

    first = [sent(caller, "/", "t") for caller in ("a", "b", "c")]
    routed = [sent("a", "/tenants/1", tenant) for tenant in ("t", "u")]
    async with Upstream(answering(CREATED)) as upstream, gateway_at(upstream.url, routes=ROUTES) as (talk, _, port):
        answers = [await talk.exchange(data) for data in (*first, *routed)]
        assert not any(b"idempotent-replayed" in answer.lower() for answer in answers)
        again = [await talk.exchange(data) for data in (*first, *routed, *reversed(first), *reversed(routed))]
        assert all(b"idempotent-replayed" in answer.lower() for answer in again)
        async with talking(port) as another:
            for data in (*routed, *first):
                assert b"idempotent-replayed" in (await another.exchange(data)).lower()
        assert len(upstream.requests) == 5


async def test_pipelined_callers_keep_their_records_apart() -> None:
    sent = [keyed("k", authorization=caller) for caller in ("a", "b", "a", "b")]
    async with Upstream(answering(CREATED)) as upstream, gateway_at(upstream.url) as (talk, _, _):
        for _ in range(2):
            talk.writer.write(b"".join(sent))
            answers = [await talk.answer() for _ in sent]
        assert len(upstream.requests) == 2
        assert all(b"idempotent-replayed" in answer.lower() for answer in answers)

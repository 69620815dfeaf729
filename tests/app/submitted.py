"""A gateway with asynchronous routes, a command of Alice's in it, and a consumer's hand on its execution record."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx

from oncegate.app.operators.reloading import Reloaded
from oncegate.cache.redis.store import RedisCache
from oncegate.middleware.consumers.delivery import Delivery, SubscriptionSettings
from oncegate.middleware.consumers.subscription import Subscription
from testing.served import served
from testing.servers import RedisServer
from tests.app.described import DESCRIPTION, assert_described, conforms

ROUTES = [
    {"path": "/reports", "mode": "either", "consumer": "billing"},
    {"path": "/tenants", "mode": "either", "stream": "tenants", "scope": ["header:X-Tenant", "header:X-User"]},
    {"path": "/anonymous", "mode": "either", "stream": "tenants"},
]
TOKEN = "operators-token"
STATUS = DESCRIPTION["paths"]["/commands/{id}"]["get"]["responses"]
TIMEOUT = 10.0
ALICE = {"authorization": "Bearer alice"}


class Submitted:
    """What `serving` gives."""

    def __init__(self, client: httpx.AsyncClient, gateway: Any, cache: RedisCache, namespace: str) -> None:
        self.client = client
        self.gateway = gateway
        self.cache = cache
        self.namespace = namespace
        self.consumer = Subscription(
            "billing", cache=cache, namespace=namespace, settings=SubscriptionSettings(max_attempts=3)
        )

    async def submit(self, path: str = "/reports", key: str = "k-1", **headers: str) -> httpx.Response:
        sent = {"idempotency-key": key, "prefer": "respond-async"} | (headers or ALICE)
        answer = await self.client.post(path, content=b"{}", headers=sent)
        assert answer.status_code == 202
        conforms(answer.json(), {"$ref": "#/components/schemas/Accepted"})
        return answer

    async def delivery(self, identifier: str) -> Delivery:
        record = await self.cache.get(f"{self.namespace}:{identifier}")
        assert record is not None
        return Delivery("k-1", b"{}", record=identifier, fingerprint=record.record.fingerprint)

    async def status(self, location: str, **headers: str) -> dict[str, Any]:
        answer = await self.client.get(location, headers=headers or ALICE)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-store"
        assert_described(answer, STATUS["200"])
        body: dict[str, Any] = answer.json()
        return body


async def nothing_new() -> Reloaded:
    return Reloaded("0" * 12)


@asynccontextmanager
async def serving(redis_server: RedisServer, **settings: Any) -> AsyncIterator[Submitted]:
    namespace = uuid4().hex
    cache = RedisCache.from_url(redis_server.url, timeout=TIMEOUT)
    settings = {"routes": ROUTES, "cache_timeout": TIMEOUT} | settings
    async with served(
        "http://127.0.0.1:1",
        admin_token=TOKEN,
        reload=nothing_new,
        cache=redis_server.url,
        namespace=namespace,
        **settings,
    ) as (client, gateway):
        yield Submitted(client, gateway, cache, namespace)
    await cache.close()

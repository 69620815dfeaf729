"""What only shows in Redis of a release: the time that it gives back, to the millisecond."""

from oncegate.cache.codec import encode
from oncegate.cache.record import Record, State
from testing.servers import RedisServer
from tests.cache.stores import RedisStore

TOKEN, PRINT = b"a" * 16, b"p" * 16


async def test_a_release_gives_back_no_more_time_than_was_found(redis_server: RedisServer) -> None:
    store = RedisStore(redis_server)
    flight = Record(State.IN_FLIGHT, TOKEN, PRINT, 2, found=State.FAILED, found_ms=1, retention_ms=400_000)
    store.plant(encode(flight), 500_000)
    assert await store.cache.release(store.key, token=TOKEN)
    assert redis_server.command("PTTL", store.key) <= 1
    await store.cache.close()

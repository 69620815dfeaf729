"""Whether a namespace's records are under this process's secret: with another one it would find none, and execute all again."""

from oncegate.cache.errors import CacheError
from oncegate.cache.store import Cache, KeepsSecretCheck
from oncegate.middleware.rules.keys.digests import Digests

_CHECK = b"oncegate: the secret of a namespace"


class OtherSecret(CacheError):
    """The records of the namespace are under another secret than this process has."""


def check_values(digests: Digests) -> list[str]:
    """A value of each secret in use, the first one first: digests by it, which tell nothing of it."""
    values = []
    for each in (digests, digests.former):
        if each is not None:
            state = each.name.copy()
            state.update(_CHECK)
            values.append(state.hexdigest())
    return values


async def is_under_another_secret(cache: Cache, namespace: str, digests: Digests) -> bool:
    """Whether the namespace's records are. False for caches that keep no check value. Raises `CacheUnavailable`."""
    if not isinstance(cache, KeepsSecretCheck):
        return False
    return not await cache.check_secret(namespace, check_values(digests), writes=False)


async def check_secret(cache: Cache, namespace: str, digests: Digests) -> None:
    """Note that records of the namespace are under these secrets from now on.

    Raises `OtherSecret` where they are under none of them, `CacheUnavailable`.
    """
    if isinstance(cache, KeepsSecretCheck) and not await cache.check_secret(
        namespace, check_values(digests), writes=True
    ):
        raise OtherSecret(other_secret_line(namespace))


def other_secret_line(namespace: str) -> str:
    """The line about records under another secret: what that means, and the way through."""
    return (
        f"the records of namespace {namespace} are under another secret: every retry would be executed again. Give the secret"
        " that they are under; to replace it, give a list of two (ONCEGATE_SECRET, the new one first) until the old records"
        " are gone"
    )

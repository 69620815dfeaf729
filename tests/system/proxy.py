"""Between a gateway and Redis: a TCP proxy that can lose the reply to one command after Redis has executed it."""

from oncegate.cache.redis.scripts import SCRIPTS
from testing.proxy import BreakingProxy, Then


class LossyProxy(BreakingProxy):
    """``url`` is Redis by way of it. `lose_reply_to` names a script, whose next call is passed on, and its reply lost."""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def lose_reply_to(self, script: str, then: Then) -> None:
        self.watch(next(each.digest for each in SCRIPTS if each.name == script), then)

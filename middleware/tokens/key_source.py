"""Where an issuer's keys are: a file or a URL, read in a thread of its own, one reading at a time, now and then at most.

TLS, DNS and a hundred keys take longer than an event loop may stand still, and the middleware may serve several loops: who has to
wait awaits the thread's future. The last good keys are kept, however often the next reading fails.
"""

import asyncio
import logging
import threading
from concurrent.futures import Future
from pathlib import Path
from time import monotonic
from typing import Any, Final

from oncegate.middleware.tokens.key_set import MAX_BYTES, KeySet, UnusableKeys, parse_keys
from oncegate.middleware.tokens.settings import JwtSettings, is_url

log = logging.getLogger("oncegate.tokens")

TIMEOUT: Final = 5.0
"""Seconds for the keys to be read; a request waits so long for one that is not known."""
REFRESH_INTERVAL: Final = 10.0
"""Seconds at the least between two readings, whoever sends tokens whose keys are not known."""
MAX_AGE: Final = 3600.0
"""Seconds after which the keys are read anew: one that is gone there counts no more."""
_MISSING: Final = "a scope by a token's claim needs PyJWT: pip install 'oncegate[jwt]'"


class KeySource:
    """The keys that ``settings`` name. ``keys`` are the last good ones, ``None`` until there are any.

    A file is read at once: raises `UnusableKeys` where that gives no keys, and where PyJWT is missing. A URL is read in the
    background, from the first `refresh` on.
    """

    def __init__(self, settings: JwtSettings) -> None:
        _check_installed(settings.jwks)
        self.keys: KeySet | None = None
        self.failed = False
        """Whether the last reading gave no keys: one that is not known may be new."""
        self._settings = settings
        self._is_url = is_url(settings.jwks)
        self._began = float("-inf")
        self._reading: Future[None] | None = None
        self._lock = threading.Lock()
        self._tls: Any = None
        if not self._is_url:
            self.keys = self.read()
            self._began = monotonic() - REFRESH_INTERVAL
        self.stale_at = monotonic() + MAX_AGE
        """The instant (of the monotonic clock) from which on they are to be read anew."""

    def go_on_from(self, other: "KeySource") -> None:
        """Begin with the keys that ``other`` has, where these come from the same URL by the same settings."""
        if self._is_url and self._settings == other._settings:
            self.keys, self.failed, self.stale_at = other.keys, other.failed, other.stale_at
            self._began = other._began

    def fetch(self) -> None:
        """Read the keys now, in this thread, if there are none yet. Raises `UnusableKeys`."""
        if self.keys is None:
            self.keys = self.read()

    def refresh(self) -> bool:
        """Begin to read, unless that was done a short while ago. Whether a reading is under way."""
        with self._lock:
            if self._reading is not None:
                return True
            if monotonic() - self._began < REFRESH_INTERVAL:
                return False
            self._began = monotonic()
            self._reading = Future()
            self._reading.set_running_or_notify_cancel()  # else who stops waiting would cancel it for all others
        threading.Thread(target=self._read, name="oncegate-jwks", daemon=True).start()
        return True

    async def refreshed(self) -> bool:
        """Wait until the reading under way is over, for `TIMEOUT` at most. Whether it is."""
        reading = self._reading
        if reading is None:
            return True
        over = asyncio.wrap_future(reading)
        try:
            await asyncio.wait((over,), timeout=TIMEOUT)
        finally:
            over.cancel()
        return reading.done()

    def read(self) -> KeySet:
        """Read the keys now, in this thread. Raises `UnusableKeys`."""
        try:
            document = self._fetched() if self._is_url else self._from_file()
        except UnusableKeys:
            raise
        except OSError as error:
            raise UnusableKeys(f"jwks: can't be read: {error.strerror or type(error).__name__}") from None
        except Exception as error:  # noqa: BLE001 - what httpx raises, and what TLS and DNS do below it
            # Its text may quote a URL, and that a credential.
            raise UnusableKeys(f"jwks: did not answer: {type(error).__name__}") from None
        try:
            return parse_keys(document, self._settings.algorithms)
        except UnusableKeys as error:
            raise UnusableKeys(f"jwks: {error}") from None

    def _read(self) -> None:
        """The thread."""
        try:
            self.keys = self.read()
            self.failed = False
        except Exception as error:  # noqa: BLE001 - whatever it is, requests must not wait for ever
            self.failed = True
            kept = "no request with a token can be verified until then" if self.keys is None else "the last ones count"
            log.warning("%s; %s", error if isinstance(error, UnusableKeys) else type(error).__name__, kept)
        self.stale_at = monotonic() + (REFRESH_INTERVAL if self.failed else MAX_AGE)
        with self._lock:
            reading, self._reading = self._reading, None
        if reading is not None:
            reading.set_result(None)

    def _from_file(self) -> bytes:
        with Path(self._settings.jwks).open("rb") as file:
            return file.read(MAX_BYTES + 1)

    def _fetched(self) -> bytes:
        """All of the answer's body, at most one byte too many, within `TIMEOUT` for the whole.

        In an event loop of its own: a client without one bounds each read, and who sends a byte now and then is read for ever.
        """
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(asyncio.wait_for(self._answer(), TIMEOUT))
        except TimeoutError:
            raise UnusableKeys("jwks: did not answer in time") from None
        finally:
            # An answer that is too long leaves httpx's generators to the event loop: asyncio logs an error where it ends before.
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    async def _answer(self) -> bytes:
        """Redirects are not followed: they could lead anywhere."""
        import httpx

        headers = {"accept": "application/jwk-set+json, application/json", "accept-encoding": "identity"}
        document = b""
        if self._tls is None:  # it takes longer to be made than most fetches
            self._tls = httpx.create_ssl_context()
        async with (
            httpx.AsyncClient(timeout=2 * TIMEOUT, verify=self._tls) as client,
            client.stream("GET", self._settings.jwks, headers=headers) as response,
        ):
            if response.status_code != 200:
                raise UnusableKeys(f"jwks: answered {response.status_code}")
            async for piece in response.aiter_raw():
                document += piece
                if len(document) > MAX_BYTES:
                    break
        return document


def _check_installed(jwks: str) -> None:
    try:
        import cryptography  # noqa: F401 - without it PyJWT verifies no signature
        import jwt  # noqa: F401 - only whether it is there

        if is_url(jwks):
            import httpx  # noqa: F401 - in the thread it would come too late to stop the start
    except ImportError:
        raise UnusableKeys(_MISSING) from None

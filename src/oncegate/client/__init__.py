"""Client side: httpx transports that give each request an idempotency key, and keep it over its retries.

    client = httpx.Client(transport=IdempotentTransport())
    client.post("https://api.example/payments", json={"amount": 100})

Each request with one of ``methods`` gets a fresh ``Idempotency-Key``; a key that the caller has set is kept. It stays the
same over the transport's own retries, which are made only where that is safe: nothing was sent; the connection broke or
timed out and the request has a key (or an idempotent method); or the answer is a problem whose ``retryable`` is true. What
the caller gets in the end is the last answer, or the last error.

What it can't know:

- Whether the server honours the key. Towards one that ignores it, a retry after a broken connection may execute twice:
  use it for services behind oncegate, or that document ``Idempotency-Key``; or set ``methods=()``.
- What happened when it gives up. The outcome may be unknown then: ``error.request.headers["Idempotency-Key"]`` is the key
  to try again with, by sending ``error.request`` itself, or an equal request with that key.
- That two calls mean the same command. A second ``client.post`` is a new command with a new key. Where a retry must
  survive a restart of this process, make the key beforehand, store it with the command, and set the header.
- Whether a response that breaks off in its body can be fetched again: the transport has returned it by then. With the key it
  can, while the record lives: send ``response.request`` again.

A body that can't be sent twice (a generator, an open file, a multipart form) is sent once: such a request is retried only
where its body had not begun to leave. Pass bytes, ``json=`` or ``data=`` to have it retried like others. A redirected request
is another request: it gets a key of its own, unless the caller has set one.

Under httpx2, httpx's successor: where httpx is not installed these are transports of httpx2; where both are, call
``httpx2.alias_httpx()`` before anything else imports httpx. A client of the other package is refused with a ``TypeError``.
"""

import ssl
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from uuid import uuid4

try:
    import anyio

    try:
        import httpx
    except ImportError:
        import httpx2 as httpx  # type: ignore[no-redef]  # its successor, with the same classes
except ImportError as missing:  # pragma: no cover
    raise ImportError("oncegate.client needs httpx: pip install 'oncegate[client]'") from missing

import orjson

from oncegate.client.retry import IDEMPOTENT, Retries, RetryBudget, retry_after_seconds, worth_reading

__all__ = ["AsyncIdempotentTransport", "IdempotentTransport", "RetryBudget"]

_NOTHING_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_BROKEN = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ReadTimeout, httpx.WriteTimeout)
_MOST_OF_A_PROBLEM = 64 * 1024
"""Bytes: a problem that is worth a retry is short. Of a longer one the rest is left for the caller to read."""
_MADE_FOR = "oncegate.made_for"
"""A request extension: for which method and URL the key in the headers was made here."""


def new_key() -> str:
    """A fresh key, as the String that the draft asks for: a quoted UUID."""
    return f'"{uuid4()}"'


class _Blocking:
    """A blocking transport, as coroutines that never suspend (`_run`)."""

    def __init__(self, transport: httpx.BaseTransport) -> None:
        self._transport = transport

    async def send(self, request: httpx.Request) -> httpx.Response:
        return self._transport.handle_request(request)

    def chunks(self, response: httpx.Response) -> Any:
        return response.iter_raw()

    async def chunk(self, chunks: Any) -> bytes | None:
        """The next one of `chunks`; ``None`` at the end."""
        return next(chunks, None)

    async def close(self, response: httpx.Response) -> None:
        response.close()

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  # there is no event loop: `_run`


class _Async:
    """An asynchronous transport, with the same methods."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._transport = transport

    async def send(self, request: httpx.Request) -> httpx.Response:
        return await self._transport.handle_async_request(request)

    def chunks(self, response: httpx.Response) -> Any:
        return response.aiter_raw()

    async def chunk(self, chunks: Any) -> bytes | None:
        return await anext(chunks, None)

    async def close(self, response: httpx.Response) -> None:
        await response.aclose()

    async def pause(self, seconds: float) -> None:
        await anyio.sleep(seconds)


_Wire = _Blocking | _Async
Inner = TypeVar("Inner", httpx.BaseTransport, httpx.AsyncBaseTransport)


class _Idempotent(Generic[Inner]):
    """The rules for sending, for both transports."""

    _default: Callable[[], Inner]

    def __init__(
        self,
        transport: Inner | None = None,
        *,
        methods: Collection[str] = ("POST", "PATCH"),
        header: str = "Idempotency-Key",
        make_key: Callable[[], str] = new_key,
        budget: RetryBudget | None = None,
        also_statuses: Collection[int] = (),
    ) -> None:
        if isinstance(methods, str):  # its letters would be the methods, and no request would get a key
            raise TypeError("methods is a collection: ('POST',)")
        if not callable(make_key):
            raise TypeError(f"make_key is a {type(make_key).__qualname__}: give a function that returns a key")
        if budget is not None and not isinstance(budget, RetryBudget):
            raise TypeError(f"budget is a {type(budget).__qualname__}: give a RetryBudget(...)")
        self._transport: Inner = transport or self._default()
        self._methods = frozenset(method.upper() for method in methods)
        self._header = header
        self._make_key = make_key
        self._budget = budget or RetryBudget()
        self._also_statuses = frozenset(also_statuses)

    async def _exchange(self, wire: _Wire, request: httpx.Request) -> httpx.Response:
        """One request until its last answer is returned, or its last error raised."""
        _check_package(request)
        self._put_key(request)
        body = _Body(request.stream)
        if not isinstance(request.stream, httpx.ByteStream):  # bytes can always be sent again
            request.stream = body
        harmless = request.method in IDEMPOTENT or self._header in request.headers
        retries = Retries(self._budget, harmless, time.monotonic(), self._also_statuses)
        while True:
            try:
                response = await wire.send(request)
                problem = None
                if worth_reading(response.status_code, response.headers.get("content-type", "")):
                    response, problem = await _read(wire, response)
                pause = self._judge(retries, response, body, problem)
            except _NOTHING_SENT as error:
                resendable = body.resendable and not _certificate_refused(error)
                pause = retries.nothing_was_sent(time.monotonic(), resendable=resendable)
                if pause is None:
                    raise
            except _BROKEN:
                pause = retries.connection_broke(time.monotonic(), resendable=body.resendable)
                if pause is None:
                    raise
            else:
                if pause is None:
                    return response
                await wire.close(response)
            await wire.pause(pause)

    def _judge(self, retries: Retries, response: httpx.Response, body: "_Body", problem: Any) -> float | None:
        headers = response.headers
        after = retry_after_seconds(headers.get("retry-after"), headers.get("date"), datetime.now(UTC))
        now = time.monotonic()
        return retries.answered(now, response.status_code, problem, after, resendable=body.resendable)

    def _put_key(self, request: httpx.Request) -> None:
        made_for = request.extensions.get(_MADE_FOR)
        this = (request.method, str(request.url))
        if made_for is not None and made_for != this:  # httpx copies headers into the request that follows a redirect
            request.headers.pop(self._header, None)
            del request.extensions[_MADE_FOR]
        if request.method in self._methods and self._header not in request.headers:
            request.headers[self._header] = self._make_key()
            request.extensions[_MADE_FOR] = this


def _check_package(request: object) -> None:
    """Raises ``TypeError`` for another package's request, which would be sent, and its answer not understood."""
    if not isinstance(request, httpx.Request):
        wanted = httpx.__name__
        raise TypeError(
            f"this transport is for {wanted}: for httpx2, call httpx2.alias_httpx() before httpx is imported"
        )


class _Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A request's body, which can be sent whole until sending it has begun."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.resendable = True

    def __iter__(self) -> Iterator[bytes]:
        self.resendable = False
        yield from self._stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.resendable = False
        async for chunk in self._stream:
            yield chunk

    def close(self) -> None:
        self._stream.close()

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Rest(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A response's body of which the beginning was read: that first, then the ``rest``."""

    def __init__(self, begun: list[bytes], rest: Any, response: httpx.Response) -> None:
        self._begun = begun
        self._rest = rest
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        yield from self._begun
        yield from self._rest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._begun:
            yield chunk
        async for chunk in self._rest:
            yield chunk

    def close(self) -> None:
        self._response.close()

    async def aclose(self) -> None:
        await self._response.aclose()


async def _read(wire: _Wire, response: httpx.Response) -> tuple[httpx.Response, Any]:
    """``response`` with its body as it came over the wire, which the caller can read again; and its JSON value, or ``None``.

    Of a long body only the beginning is read. A short one is read to its end, and the response closed.
    """
    begun, size, rest = list[bytes](), 0, wire.chunks(response)
    try:
        while (chunk := await wire.chunk(rest)) is not None:
            begun.append(chunk)
            size += len(chunk)
            if size > _MOST_OF_A_PROBLEM:
                left = _Rest(begun, rest, response)
                return _again(response, stream=left, extensions=response.extensions), None
    except BaseException:  # however reading ends, an interrupt or a cancellation too, the response is closed
        await wire.close(response)
        raise
    await wire.close(response)
    extensions = {name: value for name, value in response.extensions.items() if name != "network_stream"}
    whole = _again(response, content=b"".join(begun), extensions=extensions)
    with suppress(orjson.JSONDecodeError, httpx.DecodingError):
        return whole, orjson.loads(whole.content)
    return whole, None


def _again(response: httpx.Response, **body: Any) -> httpx.Response:
    return httpx.Response(response.status_code, headers=response.headers, **body)


def _certificate_refused(error: BaseException | None) -> bool:
    """Whether a connection failed for a reason that another try won't change: the server's certificate is not trusted."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _run(exchange: Coroutine[Any, Any, httpx.Response]) -> httpx.Response:
    """The result of a coroutine whose every call blocks: it never suspends, and needs no event loop."""
    try:
        exchange.send(None)
    except StopIteration as ended:
        response: httpx.Response = ended.value
        return response
    raise RuntimeError("a blocking call has suspended")


class IdempotentTransport(_Idempotent[httpx.BaseTransport], httpx.BaseTransport):
    """A transport for ``httpx.Client``. What it does, and what it can't know: see `oncegate.client`.

    ``transport`` is what sends (default: ``httpx.HTTPTransport()``), and takes what the client would have passed on to its
    own: ``verify``, ``cert``, ``http2``, ``limits``; it is closed with this one. ``methods`` are those whose requests get a
    key. ``also_statuses`` are retried too, where the request has a key, without a problem that says so.

    Raises ``TypeError`` for ``methods`` that are a single string.
    """

    _default = httpx.HTTPTransport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.BaseTransport`."""
        return _run(self._exchange(_Blocking(self._transport), request))

    def close(self) -> None:
        """Close the inner transport."""
        self._transport.close()


class AsyncIdempotentTransport(_Idempotent[httpx.AsyncBaseTransport], httpx.AsyncBaseTransport):
    """A transport for ``httpx.AsyncClient``; see `IdempotentTransport`."""

    _default = httpx.AsyncHTTPTransport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.AsyncBaseTransport`."""
        return await self._exchange(_Async(self._transport), request)

    async def aclose(self) -> None:
        """Close the inner transport."""
        await self._transport.aclose()

"""The upstream's URL, parsed."""

from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

_SCHEMES = ("http", "https", "unix")
_UNSAFE = frozenset(map(chr, [*range(0x21), 0x7F]))


@dataclass(frozen=True, slots=True)
class UpstreamAddress:
    """A parsed upstream URL: ``http://host[:port][/base]``, ``https://...`` or ``unix:///path/to/socket``.

    ``authority`` is what `Host` says for a client that sent none; ``base`` goes before every path and has no slash at its
    end; ``where`` names the upstream in errors.
    """

    scheme: str
    host: str
    port: int
    base: bytes
    authority: bytes
    where: str

    @classmethod
    def parse(cls, url: str) -> "UpstreamAddress":
        """The address that ``url`` names. Raises `ValueError`, one line, which doesn't repeat credentials."""
        if not url.isascii() or not _UNSAFE.isdisjoint(url):
            raise ValueError("holds a space, a control character or one outside ASCII")
        parts = split_url(url)
        if parts.scheme not in _SCHEMES:
            raise ValueError("must be a URL that starts with http:// or https:// or unix://")
        if parts.username is not None or parts.password is not None:
            raise ValueError("must not carry credentials; clients send their own")
        if "?" in url or "#" in url:
            raise ValueError("must not have a query or a fragment")
        if parts.scheme == "unix":
            if parts.netloc or parts.path[:1] != "/" or len(parts.path) < 2:
                raise ValueError("needs an absolute path: unix:///run/service.sock")
            path = unquote(parts.path)
            return cls("unix", path, 0, b"", b"localhost", f"unix://{path}")
        if not parts.hostname:
            raise ValueError("needs a host: http://127.0.0.1:9000")
        if parts.port == 0:
            raise ValueError("must not have port 0")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        base, authority = parts.path.rstrip("/").encode("ascii"), parts.netloc.encode("ascii")
        return cls(parts.scheme, parts.hostname, port, base, authority, f"{parts.scheme}://{parts.netloc}")


def split_url(url: str) -> SplitResult:
    """The parts of ``url``. Raises `ValueError` in a text that repeats nothing of it."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError("is not a URL; is the port a number?") from None
    return parts

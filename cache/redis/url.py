"""Reads a cache URL's scheme, and parses those that name several servers, without redis-py and without connecting.

``redis+sentinel://[user:password@]host[:port][,host[:port]...]/service[/db][?options]``: the hosts are Sentinels, user
and password are Redis's own; Sentinel's are the options ``sentinel_username`` and ``sentinel_password``.
``redis+cluster://[user:password@]host[:port][,host[:port]...][?options]``: any nodes of the cluster.
With ``rediss+``, every connection is encrypted. The other options are redis-py's, as in ``redis://``.
"""

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlencode

SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
CLUSTER_SCHEMES = ("redis+cluster", "rediss+cluster")
MANY_SERVERS = (*SENTINEL_SCHEMES, *CLUSTER_SCHEMES)
ONE_SERVER = ("redis", "rediss", "unix")
REDIS_SCHEMES = (*ONE_SERVER, *MANY_SERVERS)
SENTINEL_PORT, CLUSTER_PORT = 26379, 6379

Server = tuple[str, int]
"""A host and a port."""


@dataclass(frozen=True, slots=True)
class ServersUrl:
    """The parts of such a URL. ``base`` is the plain Redis URL that holds for each server, but for host and port.

    ``service`` is empty for a cluster. ``login`` are Sentinel's own user and password, where given, by redis-py's names.
    """

    servers: tuple[Server, ...]
    service: str
    base: str = field(repr=False)
    login: dict[str, str] = field(repr=False)


def scheme_of(url: str) -> str:
    """The scheme of ``url`` in lower case (RFC 3986 section 3.1: it has no case); empty where there is none."""
    scheme, there, _ = url.partition("://")
    return scheme.lower() if there else ""


def parse_servers_url(url: str) -> ServersUrl:
    """Take ``url`` apart. Raises ``ValueError`` with one line that repeats no part of it but the scheme."""
    scheme = scheme_of(url)
    rest, _, query = url.partition("://")[2].partition("?")
    authority, _, path = rest.partition("/")
    userinfo, at, hosts = authority.rpartition("@")
    sentinel = scheme in SENTINEL_SCHEMES
    port = SENTINEL_PORT if sentinel else CLUSTER_PORT
    servers = tuple(_server(host, port, scheme) for host in hosts.split(","))
    service, database = _service(scheme, path) if sentinel else ("", _no_database(scheme, path))
    login, options = {}, []
    for name, value in parse_qsl(query, keep_blank_values=True):
        if sentinel and name in ("sentinel_username", "sentinel_password"):
            login[name.removeprefix("sentinel_")] = value
        else:
            options.append((name, value))
    base = f"{scheme.partition('+')[0]}://{userinfo}{at}localhost/{database}?{urlencode(options)}"
    return ServersUrl(servers, service, base, login)


def _server(text: str, default: int, scheme: str) -> Server:
    host, port = text, ""
    if text.startswith("["):  # an IPv6 address
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise ValueError(f"{scheme}:// has a host that can't be read")
        port = port[1:]
    elif ":" in text:
        host, _, port = text.partition(":")
    if not host:
        raise ValueError(
            f"{scheme}:// needs a host, or several with commas between: {scheme}://one:{default},two:{default}"
        )
    if not port:
        return host, default
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{scheme}:// has a port that is not a number from 1 to 65535")
    return host, int(port)


def _service(scheme: str, path: str) -> tuple[str, str]:
    service, _, database = path.rstrip("/").partition("/")
    if not service:
        raise ValueError(f"{scheme}:// needs the name of the service: {scheme}://host:{SENTINEL_PORT}/mymaster")
    if database and not (database.isascii() and database.isdigit()):
        raise ValueError(f"{scheme}:// has a database that is not a number: {scheme}://host:{SENTINEL_PORT}/mymaster/0")
    return unquote(service), database or "0"


def _no_database(scheme: str, path: str) -> str:
    if path.rstrip("/") not in ("", "0"):
        raise ValueError(f"{scheme}:// has no databases but 0: leave the path out")
    return "0"


def either(schemes: tuple[str, ...], separator: str = " or ") -> str:
    """``schemes`` as a text names them."""
    return separator.join(f"{scheme}://" for scheme in schemes)

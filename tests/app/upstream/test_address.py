"""Which upstream URLs there are."""

import pytest

from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.upstream_url import UpstreamAddress
from oncegate.app.upstream.forward import Forwarder

pytestmark = pytest.mark.both_loops


@pytest.mark.parametrize(
    ("url", "scheme", "host", "port", "base", "authority"),
    [
        ("http://127.0.0.1:9000", "http", "127.0.0.1", 9000, b"", b"127.0.0.1:9000"),
        ("http://Example.com", "http", "example.com", 80, b"", b"Example.com"),
        ("https://example.com/", "https", "example.com", 443, b"", b"example.com"),
        ("https://example.com:8443/a/b/", "https", "example.com", 8443, b"/a/b", b"example.com:8443"),
        ("http://[::1]:80/x%20y", "http", "::1", 80, b"/x%20y", b"[::1]:80"),
        ("unix:///run/app.sock", "unix", "/run/app.sock", 0, b"", b"localhost"),
        ("unix:///run/my%20app.sock", "unix", "/run/my app.sock", 0, b"", b"localhost"),
    ],
)
def test_what_a_url_means(url: str, scheme: str, host: str, port: int, base: bytes, authority: bytes) -> None:
    address = UpstreamAddress.parse(url)
    assert (address.scheme, address.host, address.port) == (scheme, host, port)
    assert (address.base, address.authority) == (base, authority)


NO_HTTP = ["", "example.com", "localhost:9000", "ftp://x", "http://", "http:///a", "http://:80", "http://[::1"]
NO_PORT = ["http://x:0", "http://x:99999", "http://x:y"]
TOO_MUCH = ["http://x/a b", "http://x/\r\n", "http://ex\u00e4mple.com", "http://x?a", "http://x/?", "http://x/#"]
CREDENTIALS = ["http://user:secret@x", "http://user@x"]
NO_SOCKET = ["unix://", "unix:///", "unix://host/path", "unix:run.sock"]


@pytest.mark.parametrize("url", NO_HTTP + NO_PORT + TOO_MUCH + CREDENTIALS + NO_SOCKET)
def test_a_url_that_names_no_upstream_is_refused_in_one_line_without_credentials(url: str) -> None:
    with pytest.raises(ValueError) as raised:
        Forwarder(url)
    with pytest.raises(ValueError):  # not when the gateway starts
        GatewaySettings(upstream=url)
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_network_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/99"):
        Forwarder("http://x", trusted_proxies=["10.0.0.0/99"])

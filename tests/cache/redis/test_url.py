"""URLs that name several servers.

Rules of docs/contract.md: R6.9, R10.6.
"""

import pytest

from oncegate.cache.open import check_url, open_cache
from oncegate.cache.redis.store import RedisCache
from oncegate.cache.redis.url import parse_servers_url


def test_a_sentinel_url_names_hosts_service_database_and_both_logins() -> None:
    address = parse_servers_url(
        "rediss+sentinel://user:p%40ss@one,two:26380,[::1]:7/my%20service/3?sentinel_password=other&ssl_ca_certs=/ca.pem"
    )
    assert address.servers == (("one", 26379), ("two", 26380), ("::1", 7))
    assert address.service == "my service"
    assert address.login == {"password": "other"}
    assert address.base == "rediss://user:p%40ss@localhost/3?ssl_ca_certs=%2Fca.pem"


def test_a_cluster_url_names_nodes_to_begin_with() -> None:
    address = parse_servers_url("redis+cluster://:secret@[fe80::1],b:7001/0")
    assert address.servers == (("fe80::1", 6379), ("b", 7001))
    assert (address.service, address.base) == ("", "redis://:secret@localhost/0?")


@pytest.mark.parametrize("url", ["redis+sentinel://h:1/mymaster", "redis+cluster://h:1/0"])
def test_a_scheme_may_be_in_capitals(url: str) -> None:
    scheme, _, rest = url.partition("://")
    for spelled in (scheme.upper(), scheme.title()):
        assert check_url(f"{spelled}://{rest}") == scheme
        assert parse_servers_url(f"{spelled}://{rest}") == parse_servers_url(url)
        assert isinstance(open_cache(f"{spelled}://{rest}"), RedisCache)


def test_a_printed_address_holds_no_credentials() -> None:
    assert "s3cret" not in repr(
        parse_servers_url("redis+sentinel://u:s3cret@h/svc?sentinel_password=s3cret&password=s3cret")
    )


@pytest.mark.parametrize("port", ["0", "65536", "x", "1_0", "²", "-1"])
def test_a_port_is_a_number_in_range(port: str) -> None:
    with pytest.raises(ValueError, match="from 1 to 65535"):
        parse_servers_url(f"redis+cluster://a:1,b:{port}")

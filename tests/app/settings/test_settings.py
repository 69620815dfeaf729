"""Where settings come from, which wins, and the one line that each fault gets.

Rules of docs/contract.md: R2.5, R6.5, R8.2, R10.2, R10.3, R10.4, R10.6, R10.7.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import httptools
import pytest
from pydantic import ValidationError

from oncegate.app.settings.advice import settings_advice
from oncegate.app.settings.gateway import GatewaySettings, redact
from oncegate.app.settings.loading.sources import ConfigurationError, load
from oncegate.app.settings.together import FORWARDED_METHODS
from oncegate.cache.open import CACHE_SCHEMES
from oncegate.cache.redis.url import REDIS_SCHEMES
from oncegate.middleware.rules.settings import Route
from testing.command_line import invoke

UPSTREAM = {"upstream": "http://127.0.0.1:9000"}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("ONCEGATE_"):
            monkeypatch.delenv(name)


def toml(tmp_path: Path, text: str) -> str:
    file = tmp_path / "oncegate.toml"
    file.write_text(text)
    return str(file)


def fault(arguments: Mapping[str, object], config: str | None = None) -> str:
    with pytest.raises(ConfigurationError) as raised:
        load(arguments, config)
    line = str(raised.value)
    assert "\n" not in line
    return line


def test_the_defaults_are_those_of_the_contract() -> None:
    settings = load(UPSTREAM)
    assert settings.model_dump(
        exclude={
            "idempotency",
            "cors",
            "worker",
            "jwt",
            "log_level",
            "log_format",
            "access_log",
            "access_log_file",
            "access_log_only",
            "ready_needs_cache",
            "sample_records",
            "admin_tokens",
            "secret",
            "secret_file",
            "encryption_keys",
            "encryption_keys_file",
        }
    ) == {
        "upstream": "http://127.0.0.1:9000",
        "cache": "memory://",
        "host": "127.0.0.1",
        "port": 8080,
        "workers": 1,
        "namespace": "default",
        "cache_timeout": 0.5,
        "memory_limit": 268435456,
        "max_in_flight": 1000,
        "max_in_flight_per_caller": 0,
        "new_keys_per_caller": "",
        "max_buffered": 67108864,
        "max_unread": 268435456,
        "stream_limit": 100000,
        "body_timeout": 30,
        "upstream_keepalive": 1.5,
        "upstream_ca": "",
        "upstream_cert": "",
        "upstream_key": "",
        "tunnel_timeout": 300,
        "tls_cert": "",
        "tls_key": "",
        "trusted_proxies": (),
        "via": True,
        "drain_delay": 0,
        "shutdown_timeout": 30,
        "prefix": "/_oncegate",
        "ops_port": 0,
        "public": (),
        "ops_database": "",
        "tracing": False,
        "routes": (),
    }
    assert settings.idempotency.ttl == 86400
    assert settings.idempotency.lease == 30


@pytest.mark.parametrize(("cache_timeout", "lease"), [(0.1, 0.3), (0.4, 1.2), (1.1, 3.3)])
def test_a_lease_of_exactly_three_cache_time_outs_is_allowed(cache_timeout: float, lease: float) -> None:
    settings = load({**UPSTREAM, "cache_timeout": cache_timeout, "idempotency": {"lease": lease}})
    assert settings.idempotency.lease == lease


def test_command_line_wins_over_environment_over_file_over_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toml(tmp_path, 'upstream = "http://file"\nport = 1\nworkers = 1\nnamespace = "file"\ndrain_delay = 7\n')
    monkeypatch.setenv("ONCEGATE_PORT", "2")
    monkeypatch.setenv("ONCEGATE_NAMESPACE", "environment")
    settings = load({"port": 3}, config)
    assert (settings.port, settings.namespace, settings.drain_delay) == (3, "environment", 7)
    assert settings.host == "127.0.0.1"


def test_tables_are_laid_over_each_other_field_by_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = toml(tmp_path, 'upstream = "http://file"\n[idempotency]\nttl = 5\nerror_ttl = 6\n')
    monkeypatch.setenv("ONCEGATE_IDEMPOTENCY__TTL", "50")
    monkeypatch.setenv("ONCEGATE_IDEMPOTENCY__SCOPE", '["header:X-Api-Key"]')
    rules = load({}, config).idempotency
    assert (rules.ttl, rules.error_ttl, rules.scope) == (50, 6, ("header:X-Api-Key",))


def test_the_file_may_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEGATE_CONFIG", toml(tmp_path, 'upstream = "http://file"\n'))
    assert load({}).upstream == "http://file"


def test_routes_come_from_the_file_with_their_overrides(tmp_path: Path) -> None:
    text = 'upstream = "http://file"\n[[routes]]\npath = "/payments/*"\non_missing_key = "reject"\nttl = 9\n'
    route = load({}, toml(tmp_path, text + '[routes.status]\n402 = "success"\n')).routes[0]
    assert route.status == {402: "success"}
    assert route.settings(load(UPSTREAM).idempotency).ttl == 9


def test_a_variable_in_the_file_is_taken_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = toml(tmp_path, 'upstream = "http://${SERVICE}:90"\nport = "${OUR_PORT}"\n')
    monkeypatch.setenv("SERVICE", "backend")
    monkeypatch.setenv("OUR_PORT", "81")
    settings = load({}, config)
    assert (settings.upstream, settings.port) == ("http://backend:90", 81)


def test_a_variable_that_is_not_set_is_named_with_its_place(tmp_path: Path) -> None:
    config = toml(tmp_path, 'upstream = "http://a"\n[idempotency]\nscope = ["header:${NOWHERE}"]\n')
    line = fault({}, config)
    assert line == f"{config}: idempotency.scope.0: the environment variable NOWHERE is not set"


def test_the_admin_token_is_known_and_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEGATE_ADMIN_TOKEN", "s3cret")
    assert "s3cret" not in repr(load(UPSTREAM))


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("PRT", "1", "ONCEGATE_PRT (environment): unknown setting, did you mean ONCEGATE_PORT?; unset it"),
        (
            "IDEMPOTENCY__TTLL",
            "1",
            "ONCEGATE_IDEMPOTENCY__TTLL (environment): unknown setting, did you mean ONCEGATE_IDEMPOTENCY__TTL?; unset it",
        ),
        (
            "ROUTES__0__PATH",
            "/",
            "ONCEGATE_ROUTES__0__PATH (environment): is a route's: routes are given as JSON, in ONCEGATE_ROUTES; unset it",
        ),
        ("PORT", "http", "port (ONCEGATE_PORT): must be a whole number, without a unit"),
        ("PORT", "70000", "port (ONCEGATE_PORT): must be less than or equal to 65535"),
        ("IDEMPOTENCY__SCOPE", "header:X", "ONCEGATE_IDEMPOTENCY__SCOPE (environment): a list is written as JSON"),
        (
            "IDEMPOTENCY__ON_ERROR",
            "skip",
            "idempotency.on_error (ONCEGATE_IDEMPOTENCY__ON_ERROR): must be 'retry' or 'replay'",
        ),
        (
            "IDEMPOTENCY__LEASE",
            "1",
            "idempotency.lease (ONCEGATE_IDEMPOTENCY__LEASE): 1 is below 1.5; it must be at least 3",
        ),
        (
            "IDEMPOTENCY__HEADER",
            "Content-Length",
            "idempotency.header (ONCEGATE_IDEMPOTENCY__HEADER): Content-Length means",
        ),
        (
            "IDEMPOTENCY__ALIASES",
            '["X-Key", "authorization"]',
            "idempotency.aliases (ONCEGATE_IDEMPOTENCY__ALIASES): authorization",
        ),
        (
            "IDEMPOTENCY__DOCS_URL",
            "a b",
            "idempotency.docs_url (ONCEGATE_IDEMPOTENCY__DOCS_URL): must be a URL of printable",
        ),
        ("WORKERS", "2", "workers (ONCEGATE_WORKERS): memory:// is for one process; set workers = 1, or a shared"),
        ("NAMESPACE", "a b", "namespace (ONCEGATE_NAMESPACE): must be a name of 1 to 64"),
        ("PREFIX", "x", "prefix (ONCEGATE_PREFIX): must be a path that ends without a slash"),
        ("PREFIX", "/", "prefix (ONCEGATE_PREFIX): must be a path that ends without a slash"),
        ("OPS_PORT", "8080", "ops_port (ONCEGATE_OPS_PORT): is the same as port"),
        ("CACHE", "redis+sentinel://a", "cache (ONCEGATE_CACHE): redis+sentinel:// needs the name of the service"),
        ("CACHE", "redis+cluster://a:1,b:x", "cache (ONCEGATE_CACHE): redis+cluster:// has a port that is not a"),
        ("CACHE", "redis+cluster://a/2", "cache (ONCEGATE_CACHE): redis+cluster:// has no databases but 0"),
        ("CACHE", "sqlite://a", "cache (ONCEGATE_CACHE): sqlite:// takes three slashes and a file"),
        ("CACHE", "postgresql://a/b?prepare=no", "cache (ONCEGATE_CACHE): prepare is on (the default) or off"),
        ("CACHE", "memcached://a", "cache (ONCEGATE_CACHE): must be a URL that starts with memory:// or redis://"),
        ("CACHE", "memory://x", "cache (ONCEGATE_CACHE): memory:// takes nothing after it"),
        ("CACHE", "memory://#x", "cache (ONCEGATE_CACHE): memory:// takes nothing after it"),
        (
            "TRUSTED_PROXIES",
            '["x"]',
            'trusted_proxies (ONCEGATE_TRUSTED_PROXIES): must be IP addresses or networks: ["10.',
        ),
        ("ROUTES", '[{"path":"/x","mode":"later"}]', "routes.0.mode (ONCEGATE_ROUTES): must be 'sync', 'async' or"),
        ("ROUTES", '[{"path":"/x","mode":"either"}]', 'routes.0.mode (ONCEGATE_ROUTES): "either" needs a Redis'),
        ("ROUTES", '[{"path":"/x","stream":"a:b"}]', "routes.0.stream (ONCEGATE_ROUTES): must be a name of 1 to 64"),
        ("ROUTES", '[{"path":"/x","consumer":""}]', "routes.0.consumer (ONCEGATE_ROUTES): must be a name of 1 to 64"),
        ("STREAM_LIMIT", "0", "stream_limit (ONCEGATE_STREAM_LIMIT): must be greater than or equal to 1"),
        ("ROUTES", '[{"path":"/x","ttll":1}]', "routes.0.ttll (ONCEGATE_ROUTES): unknown setting, did you mean ttl?"),
        ("ROUTES", '[{"path":"/x","ttl":0}]', "routes.0.ttl (ONCEGATE_ROUTES): must be greater than 0"),
        ("ROUTES", '[{"path":"/x","lease":1}]', "routes.0.lease (ONCEGATE_ROUTES): 1 is below 1.5"),
        ("ROUTES", '[{"path":"/x","status":{"402":"ok"}}]', "routes.0.status.402 (ONCEGATE_ROUTES): must be 'success'"),
    ],
)
def test_a_fault_in_the_environment(variable: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"ONCEGATE_{variable}", value)
    assert fault(UPSTREAM).startswith(expected)


@pytest.mark.parametrize(
    ("upstream", "expected"),
    [
        ("127.0.0.1:9000", "must be a URL that starts with http:// or https:// or unix://"),
        ("http://", "needs a host: http://127.0.0.1:9000"),
        ("http://host:0", "must not have port 0"),
        ("http://host/?", "must not have a query or a fragment"),
        ("http://h\u00f6st", "holds a space, a control character or one outside ASCII"),
        ("http://host:port", "is not a URL; is the port a number?"),
        ("http://user:s3cret@host", "must not carry credentials; clients send their own"),
        ("http://host/?a=1", "must not have a query or a fragment"),
        ("unix://relative.sock", "needs an absolute path: unix:///run/service.sock"),
    ],
)
def test_a_fault_in_the_upstream(upstream: str, expected: str) -> None:
    assert fault({"upstream": upstream}) == f"upstream (command line): {expected}"


def test_no_upstream_says_how_to_give_one() -> None:
    assert fault({}).startswith("upstream: is missing: give --upstream URL, set ONCEGATE_UPSTREAM, or upstream in")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("upstream = \n", "is not valid TOML (at line 1, column 12)"),
        ('upstream = "http://a"\ncash = "x"\n', "unknown setting, did you mean cache?"),
        ('upstream = "http://a"\n[idempotency]\ntll = 1\n', "idempotency.tll"),
        ('upstream = "http://a"\nport = "x"\nworkers = 0\n', "(and 1 more)"),
    ],
)
def test_a_fault_in_the_file_names_the_file(text: str, expected: str, tmp_path: Path) -> None:
    config = toml(tmp_path, text)
    line = fault({}, config)
    assert config in line
    assert expected in line


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    config = str(tmp_path / "nowhere.toml")
    assert fault(UPSTREAM, config) == f"{config}: can't be read: No such file or directory"


def test_no_fault_repeats_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "rediss+s3cret://:s3cret@host:s3cret/s3cret")
    assert "s3cret" not in fault(UPSTREAM, toml(tmp_path, 'cache = "${REDIS_URL}"\n'))
    assert "s3cret" not in fault(UPSTREAM, toml(tmp_path, "cache = s3cret\n"))
    assert "s3cret" not in fault(UPSTREAM | {"port": "s3cret", "workers": "s3cret"})


def test_urls_are_printed_without_credentials() -> None:
    assert redact("redis://:s3cret@host:6379/0?password=s3cret") == "redis://host:6379/0"
    assert (
        redact("redis+sentinel://u:s3cret@a:1,b:2/svc/0?sentinel_password=s3cret") == "redis+sentinel://a:1,b:2/svc/0"
    )
    assert redact("unix://user:s3cret@/run/redis.sock?db=1") == "unix:///run/redis.sock"
    assert redact("s3cret") == "(not a URL)"
    for apart in "/?#":  # which SQLAlchemy takes within a password
        assert redact(f"postgresql+asyncpg://shop:s3{apart}cret@host/shop") == "postgresql+asyncpg://(left out)"
    assert redact("redis://host/0?password=s3@cret") == "redis://(left out)"
    settings = GatewaySettings(upstream="http://host", cache="redis://:s3cret@host")
    assert "s3cret" not in repr(settings)


REDIS = {**UPSTREAM, "cache": "redis://127.0.0.1"}


def test_an_asynchronous_route_needs_keys_and_says_so_in_one_line() -> None:
    line = fault({**REDIS, "routes": [{"path": "/x", "mode": "async"}]})
    assert line == (
        'routes.0.mode (command line): "async" takes no command without a key, by which its copies are known; '
        'set on_missing_key = "reject" or "generate"'
    )
    routes = [{"path": "/a", "mode": "async", "on_missing_key": "reject"}, {"path": "/b", "mode": "either"}]
    assert [route.mode for route in load({**REDIS, "routes": routes}).routes] == ["async", "either"]
    made = {**REDIS, "idempotency": {"on_missing_key": "generate"}, "routes": [{"path": "/x", "mode": "async"}]}
    assert load(made).routes[0].stream == "commands"


@pytest.mark.parametrize("cache", [f"{scheme}://h/{'s' * scheme.endswith('sentinel')}" for scheme in REDIS_SCHEMES])
def test_an_asynchronous_route_takes_every_kind_of_redis(cache: str) -> None:
    assert load({**UPSTREAM, "cache": cache, "routes": [{"path": "/x", "mode": "either"}]}).routes[0].mode == "either"


def test_two_routes_to_one_stream_name_one_consumer() -> None:
    one, other = {"path": "/a", "mode": "either"}, {"path": "/b", "mode": "either", "consumer": "billing"}
    assert fault({**REDIS, "routes": [one, other]}).startswith("routes.1.consumer (command line): is another one than")
    same = load({**REDIS, "routes": [{**one, "consumer": "billing"}, other]})
    assert [route.consumer_name for route in same.routes] == ["billing", "billing"]
    apart = load({**REDIS, "routes": [one, {**other, "stream": "bills"}]})
    assert [route.consumer_name for route in apart.routes] == ["commands", "billing"]


def test_a_route_s_path_that_would_guard_nothing_is_refused_in_one_line() -> None:
    line = fault({**UPSTREAM, "routes": [{"path": "/a"}, {"path": "/payments/{id:[0-9]+}"}]})
    assert line.startswith("routes.1.path (command line): ")
    assert "{name:path}" in line
    assert "\n" not in line
    assert load({**UPSTREAM, "routes": [{"path": "/payments/{id}"}]}).routes[0].path == "/payments/{id}"


def test_no_methods_are_a_route_without_enforcement() -> None:
    assert load({**UPSTREAM, "routes": [{"path": "*", "methods": []}]}).routes[0].methods == ()
    line = fault({**UPSTREAM, "routes": [{"path": "*", "methods": [], "ttl": 5}]})
    assert "methods = [] switches enforcement off here" in line


def test_what_is_numbered_is_accepted_and_has_a_place_for_its_id() -> None:
    accepted = {
        "path": "/orders/*",
        "mode": "async",
        "on_missing_key": "reject",
        "aggregate": "path",
        "require_version": True,
    }
    assert load({**REDIS, "routes": [accepted]}).routes[0].aggregate == "path"
    for wrong, line in (
        ({"mode": "sync"}, 'aggregate needs mode = "async" or "either"'),
        ({"path": "/orders/{id}"}, 'aggregate = "path" needs a * in path'),
        ({"aggregate": None}, "require_version needs aggregate"),
        ({"aggregate": "header:"}, "routes.0.aggregate"),
        ({"aggregate": "order"}, "routes.0.aggregate"),
    ):
        found = fault({**REDIS, "routes": [accepted | wrong]})
        assert line in found
        assert "\n" not in found


def test_a_shared_cache_without_scope_and_namespace_gets_advice() -> None:
    assert settings_advice(load(UPSTREAM)) == []
    shared = UPSTREAM | {"cache": "redis://host"}
    assert [line.split()[0] for line in settings_advice(load(shared))] == ["idempotency.scope", "namespace"]
    assert (
        settings_advice(load(shared | {"namespace": "pay", "idempotency": {"scope": ["header:Authorization"]}})) == []
    )


def test_building_settings_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "1")
    monkeypatch.setenv("ONCEGATE_PORT", "1")
    assert GatewaySettings(upstream="http://host").port == 8080


def test_every_cache_that_can_be_opened_is_named_where_one_is_chosen() -> None:
    texts = [GatewaySettings.model_fields["cache"].description or "", invoke("serve", "--help").stdout]
    for scheme in CACHE_SCHEMES:
        assert all(f"{scheme}://" in text for text in texts), scheme


class _Nobody:
    """Takes no events of a parser's."""


def _is_parsed(method: str) -> bool:
    parser = httptools.HttpRequestParser(_Nobody())
    try:
        parser.feed_data(f"{method} / HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    except httptools.HttpParserInvalidMethodError:
        return False
    return True


def test_a_route_for_a_method_that_is_not_forwarded_is_refused() -> None:
    """It would guard nothing."""
    assert all(map(_is_parsed, FORWARDED_METHODS))
    for method in ("FOO", "VERSION-CONTROL", "CONNECT"):
        with pytest.raises(ValidationError, match=f"routes.0.methods: {method} is no method"):
            GatewaySettings(upstream="http://u", routes=(Route(path="/x", methods=[method]),))

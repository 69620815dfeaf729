"""Mistakes in settings, and the line that each of them gets.

Rules of docs/contract.md: R10.4, R10.12.
"""

import os
from pathlib import Path

import pytest
from pydantic import BaseModel

from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.faults import TABLES
from oncegate.app.settings.loading.sources import ConfigurationError, load
from oncegate.middleware.rules.settings import Route

UPSTREAM = 'upstream = "http://127.0.0.1:9000"\n'
ROUTE = '[[routes]]\npath = "/x"\n'
NUMBER, WHOLE = "must be a number, without a unit", "must be a whole number, without a unit"
TOP, TABLE_NAMES = (
    "to the top of the file, before the first table",
    "[idempotency], [cors], [jwt], [worker] and [[routes]]",
)
STATUS = 'must be a status from 200 to 599, or a class of them: "2xx", "3xx", "4xx", "5xx"'
NAME = "must be a name of 1 to 64 letters, digits, dots, underscores and hyphens"
HEADER = "must be a header's name: letters, digits and hyphens"
TEXT = "must be a text, in quotes"
URL = "must be a URL that starts with http:// or https:// or unix://"

IN_THE_FILE = [
    # What belongs elsewhere.
    ("ttl = 5", "ttl", 2, "is no setting here: it belongs into [idempotency]"),
    ("concurrency = 5", "concurrency", 2, "is no setting here: it belongs into [worker]"),
    ('origins = ["x"]', "origins", 2, "is no setting here: it belongs into [cors]"),
    ('jwks = "x"', "jwks", 2, "is no setting here: it belongs into [jwt]"),
    ('methods = ["POST"]', "methods", 2, "is no setting here: it belongs into [[routes]]"),
    ('stream = "x"', "stream", 2, "is no setting here: it belongs into [worker] or into [[routes]]"),
    ("[idempotency]\nport = 5", "idempotency.port", 3, f"is no setting here: it belongs {TOP}"),
    (ROUTE + 'namespace = "a"', "routes.0.namespace", 4, f"is no setting here: it belongs {TOP}"),
    (ROUTE * 2 + "concurrency = 1", "routes.1.concurrency", 6, "is no setting here: it belongs into [worker]"),
    ('[status]\n402 = "success"', "status", 2, "is no setting here: it belongs into [[routes]]"),
    ('[idempotency.status]\n402 = "success"', "idempotency.status", 2, "is no setting here: it belongs into [[routes]]"),
    # What is nothing, and what is nearly something.
    ('upsteam = "http://a"', "upsteam", 2, "unknown setting, did you mean upstream?"),
    ('log-level = "info"', "log-level", 2, "unknown setting, did you mean log_level?"),
    ("Port = 5", "Port", 2, "unknown setting, did you mean port?"),
    ('eror_ttl = 5', "eror_ttl", 2, "unknown setting, did you mean error_ttl, which belongs into [idempotency]?"),
    ("[idempotency]\ntll = 1", "idempotency.tll", 3, "unknown setting, did you mean ttl?"),
    ("colour = 1", "colour", 2, "unknown setting; remove it"),
    ('[tls]\ncert = "x"', "tls", 2, ""),
    ('[server]\nport = 1', "server", 2, f"unknown table: there are {TABLE_NAMES}"),
    ('[upstreams]\nurl = 1', "upstreams", 2, f"unknown table: there are {TABLE_NAMES}"),
    ('[drain]\nx = 1', "drain", 2, "unknown table: drain_delay stand at the top of the file, without one"),
    ('[Idempotency]\nttl = 5', "Idempotency", 2, "unknown table, did you mean [idempotency]?"),
    ('[route]\npath = "/x"', "route", 2, "unknown table, did you mean [[routes]]?"),
    ('[worker.x]\na = 1', "worker.x", 2, f"unknown table: there are {TABLE_NAMES}"),
    (ROUTE + "[routes.idempotency]\nttl = 5", "routes.0.idempotency", 4, "is no table of a route's: a route's rules stand"),
    # Tables and lists.
    ('[routes]\npath = "/x"', "routes", 2, "is a list of tables: write [[routes]], with two brackets, before each of them"),
    ("routes = 5", "routes", 2, "is a list of tables: write [[routes]], with two brackets, before each of them"),
    ('routes = ["/x"]', "routes.0", 2, "must be a table, [[routes]], with a path"),
    ("idempotency = 5", "idempotency", 2, "must be a table: [idempotency]"),
    (ROUTE + 'methods = "POST"', "routes.0.methods", 4, 'write a list: ["POST"]'),
    (ROUTE + "methods = 5", "routes.0.methods", 4, 'must be a list: ["one", "two"]'),
    ('public = "metrics"', "public", 2, 'write a list: ["metrics"]'),
    ('trusted_proxies = "10.0.0.0/8"', "trusted_proxies", 2, 'write a list: ["10.0.0.0/8"]'),
    ('[cors]\norigins = "https://a"', "cors.origins", 3, 'write a list: ["https://a"]'),
    ('[jwt]\njwks = "https://x"\nalgorithms = "RS256"', "jwt.algorithms", 4, 'write a list: ["RS256"]'),
    ('[idempotency]\naliases = "X-Key"', "idempotency.aliases", 3, 'write a list: ["X-Key"]'),
    ('[idempotency]\nscope = "X-Key"', "idempotency.scope", 3, 'write a list: ["header:X-Key"], or ["jwt:X-Key"] for a claim'),
    ("[idempotency]\nscope = []", "idempotency.scope", 3, "must have one item at least"),
    ('admin_tokens = "a"', "admin_tokens", 2, 'must be a list: ["one", "two"]'),
    ('[worker]\nforward_headers = "a"', "worker.forward_headers", 3, "must be a table"),
    # Values of another kind.
    ('port = "http"', "port", 2, WHOLE),
    ("port = 80.5", "port", 2, "must be a whole number"),
    ("port = 70000", "port", 2, "must be less than or equal to 65535"),
    ("workers = true", "workers", 2, "must be a number, not true or false"),
    ("[idempotency]\nttl = true", "idempotency.ttl", 3, "must be a number, not true or false"),
    ('[idempotency]\nttl = "1h"', "idempotency.ttl", 3, NUMBER),
    (ROUTE + 'ttl = "1d"', "routes.0.ttl", 4, NUMBER),
    (ROUTE + "wait = true", "routes.0.wait", 4, "must be a number, not true or false"),
    ('[idempotency]\nmax_result = "1MB"', "idempotency.max_result", 3, WHOLE),
    ("via = 3", "via", 2, "must be true or false"),
    ('[idempotency]\nrequire_scope = "maybe"', "idempotency.require_scope", 3, "must be true or false"),
    ("cache = 5", "cache", 2, TEXT),
    ('[cache]\nurl = "redis://a"', "cache", 2, TEXT),
    ("[worker]\nforward_headers = {a = 5}", "worker.forward_headers.a", 3, TEXT),
    ('host = ""', "host", 2, "must not be empty"),
    ('log_level = "INFO"', "log_level", 2, "must be 'debug', 'info', 'warning' or 'error'"),
    ("[idempotency]\non_missing_key = true", "idempotency.on_missing_key", 3, "must be 'run', 'reject' or 'generate'"),
    # Texts that have a form.
    ('[[routes]]\npath = "payments"', "routes.0.path", 3, 'must be a path that begins with /, or * for all: "/payments/*"'),
    (ROUTE + 'methods = ["post"]', "routes.0.methods.0", 4, 'must be a method in capitals: "POST"'),
    (ROUTE + 'methods = [\n  "POST",\n  "get",\n]', "routes.0.methods.1", 4, 'must be a method in capitals: "POST"'),
    (ROUTE + 'aggregate = "body"', "routes.0.aggregate", 4, 'must be "path" or "header:NAME"'),
    (ROUTE + '[routes.status]\n4O2 = "success"', "routes.0.status.4O2", 5, STATUS),
    (ROUTE + '[routes.status]\n99 = "success"', "routes.0.status.99", 5, STATUS),
    (ROUTE + 'key_pattern = "(a"', "routes.0.key_pattern", 4, "is no regular expression in Rust's syntax (unclosed group)"),
    ('[idempotency]\naliases = ["X Key"]', "idempotency.aliases.0", 3, HEADER),
    ('[worker]\nforward_headers = {"a b" = "c"}', "worker.forward_headers.a b", 3, HEADER),
    ('new_keys_per_caller = "600"', "new_keys_per_caller", 2, 'must be a number per second, minute or hour: "600/m"'),
    ('prefix = "/ops/"', "prefix", 2, 'must be a path that ends without a slash: "/_oncegate"'),
    ('namespace = "a b"', "namespace", 2, NAME),
    ('[cors]\norigins = ["https://a/"]', "cors.origins.0", 3, "must be an origin as browsers write it, without a path"),
    ('[worker]\nforward = "x"', "worker.forward", 3, URL),
    # What does not go together.
    (ROUTE + "wait = 50", "routes.0.wait", 4, "50 is above max_wait (30), which bounds it"),
    ("[idempotency]\nlease = 1", "idempotency.lease", 3, "1 is below 1.5; it must be at least 3 times cache_timeout"),
    ('[cors]\norigins = ["*"]\ncredentials = true', "cors.credentials", 4, 'list the origins by name, not "*"'),
    ('[worker]\nhandler = "a:b"\nforward = "http://a"', "worker", 2, "handler and forward exclude each other"),
    ("[[routes]]\nttl = 5", "routes.0.path", 2, "is missing"),
    ('[jwt]\nissuer = "x"', "jwt.jwks", 2, "is missing"),
    ('secret_file = "/nonexistent"', "secret_file", 2, "can't be read: No such file or directory"),
]  # fmt: skip

IN_THE_ENVIRONMENT = [
    ("PORT", "http", f"port (ONCEGATE_PORT): {WHOLE}"),
    ("IDEMPOTENCY__TTL", "1d", f"idempotency.ttl (ONCEGATE_IDEMPOTENCY__TTL): {NUMBER}"),
    ("IDEMPOTENCY", '{"ttl": 0}', "idempotency.ttl (ONCEGATE_IDEMPOTENCY): must be greater than 0"),
    ("ROUTES", '[{"path":"x"}]', "routes.0.path (ONCEGATE_ROUTES): must be a path that begins with /"),
    ("ROUTES", "/x", 'ONCEGATE_ROUTES (environment): routes are written as JSON: [{"path": "/payments/*"}]'),
    ("CORS__ORIGINS", "https://a", "ONCEGATE_CORS__ORIGINS (environment): a list is written as JSON: ["),
    ("IDEMPOTENCY", "ttl=5", 'ONCEGATE_IDEMPOTENCY (environment): a table is written as JSON: {"name": "value"}'),
    ("TTL", "5", "ONCEGATE_TTL (environment): unknown setting, did you mean ONCEGATE_IDEMPOTENCY__TTL?; unset it"),
    (
        "IDEMPOTENCY__PORT",
        "5",
        "ONCEGATE_IDEMPOTENCY__PORT (environment): unknown setting, did you mean ONCEGATE_PORT?",
    ),
    ("METHODS", "POST", "ONCEGATE_METHODS (environment): is a route's: routes are given as JSON, in ONCEGATE_ROUTES"),
    ("XYZZY", "1", "ONCEGATE_XYZZY (environment): unknown setting; unset it"),
    ("SECRET", "short", "secret (ONCEGATE_SECRET): a secret has 32 bytes or more"),
    ("ENCRYPTION_KEYS", '["a:b"]', "encryption_keys (ONCEGATE_ENCRYPTION_KEYS): a key is written id:base64"),
]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("ONCEGATE_"):
            monkeypatch.delenv(name)


def line(config: Path | None = None) -> str:
    with pytest.raises(ConfigurationError) as raised:
        load({} if config else {"upstream": "http://a"}, str(config) if config else None)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(("text", "name", "number", "message"), IN_THE_FILE)
def test_a_mistake_in_the_file_has_its_name_its_line_and_what_to_do(
    text: str, name: str, number: int, message: str, tmp_path: Path
) -> None:
    config = tmp_path / "o.toml"
    config.write_text(UPSTREAM + text + "\n")
    assert line(config).startswith(f"{name} ({config}, line {number}): {message}")


@pytest.mark.parametrize(("variable", "value", "expected"), IN_THE_ENVIRONMENT)
def test_a_mistake_in_the_environment_names_the_variable(
    variable: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"ONCEGATE_{variable}", value)
    assert line().startswith(expected)


@pytest.mark.parametrize("name", ["secret", "encryption_keys"])
def test_a_secret_in_the_file_is_told_the_variable_of_its_own_name(name: str, tmp_path: Path) -> None:
    config = tmp_path / "o.toml"
    config.write_text(f'{UPSTREAM}{name} = "s3cret"\n')
    line_of_it = line(config)
    assert f"set ONCEGATE_{name.upper()} or {name}_file" in line_of_it
    assert "s3cret" not in line_of_it


def test_a_name_or_a_table_that_is_there_twice_is_no_toml(tmp_path: Path) -> None:
    config = tmp_path / "o.toml"
    config.write_text(UPSTREAM + "port = 1\nport = 2\nworkers = 1\n")
    assert "is not valid TOML: a name is there twice (at line 3" in line(config)
    config.write_text(UPSTREAM + "[cors]\n[cors]\n")
    assert "is not valid TOML: a table is there twice (at line 3" in line(config)


def test_two_mistakes_are_counted_and_one_is_not_counted_twice(tmp_path: Path) -> None:
    config = tmp_path / "o.toml"
    config.write_text(UPSTREAM + 'port = "x"\nworkers = 0\n')
    assert line(config).endswith("(and 1 more)")
    config.write_text(UPSTREAM + '[idempotency]\nscope = ["Authorization"]\n')
    assert "more)" not in line(config)


WORDS_OF_A_LIBRARY = ["match pattern", "tuple", "dictionary", "instance", "valid ", "Input", "Value error", "^", "None"]


def fault_of(config: Path) -> str:
    try:
        load({}, str(config))
    except ConfigurationError as error:
        return str(error)
    return ""


def test_no_setting_anywhere_shows_a_pattern_or_a_type_of_python_s(tmp_path: Path) -> None:
    """Each setting of each table, given each kind of value that TOML has."""
    values = [
        '"\\u0000 "',
        "5",
        "-1",
        "1.5",
        "true",
        "[]",
        "[5]",
        "{}",
        "{a = 1}",
        "1979-05-27",
        "nan",
        '""',
        '["\\u0000"]',
    ]
    places: list[tuple[str, type[BaseModel]]] = [
        ("", GatewaySettings),
        *((f"[{name}]\n", model) for name, model in TABLES.items()),
        (ROUTE, Route),
    ]
    config, seen = tmp_path / "o.toml", 0
    for head, model in places:
        for name in model.model_fields:
            for value in values:
                top = "" if name == "upstream" else UPSTREAM
                before = "[[routes]]\n" if name == "path" else head
                config.write_text(f"{top}{before}{name} = {value}\n")
                line_of_it = fault_of(config)
                seen += bool(line_of_it)
                assert [word for word in WORDS_OF_A_LIBRARY if word in line_of_it] == [], (name, value, line_of_it)
                # Of what is missing, the line names what wants it.
                named = (f"{config}, line ", "not to be in a file of settings", f"is missing, and {name} is set")
                assert not line_of_it or any(place in line_of_it for place in named), line_of_it
    assert seen > 500

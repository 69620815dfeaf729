"""``oncegate config``: what is in effect, where it came from, no secret; and the schema of the file.

Rules of docs/contract.md: R10.1, R10.22, R10.23.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.sources import load
from testing.command_line import invoke

ROOT = Path(__file__).parents[3]
SCHEMA = ROOT / "docs" / "oncegate.schema.json"
SECRETS = {
    "ONCEGATE_SECRET": "a-secret-of-32-bytes-or-more-1234567890",
    "ONCEGATE_ADMIN_TOKEN": "a-token-that-nobody-guesses",
    "ONCEGATE_ENCRYPTION_KEYS": '["1:c2VjcmV0LWJ5dGVzLXNlY3JldC1ieXRlcy1zZWNyZXQ="]',
    "ONCEGATE_WORKER__FORWARD_HEADERS": '{"Authorization": "Bearer s3cret"}',
}
TEXT = """\
upstream = "http://127.0.0.1:9000"
cache = "rediss://user:s3cret@redis.example:6379/0?token=s3cret"
port = 1
host = "::1"

[idempotency]
ttl = 0.5
aliases = ["X-\\u0022Key".replace]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    config = tmp_path / "o.toml"
    config.write_text(TEXT.replace('aliases = ["X-\\u0022Key".replace]\n', 'drop_headers = ["X-A", "X-B"]\n') + ROUTES)
    return config


ROUTES = """
[[routes]]
path = "/a\\"\\\\b*"
methods = []

[[routes]]
path = "/payments/*"
wait = 5
status = {402 = "success", "5xx" = "unknown"}
"""


def test_it_prints_what_is_in_effect_and_where_each_came_from(file: Path) -> None:
    done = invoke("config", "--config", str(file), "--port", "3", ONCEGATE_PORT="2", ONCEGATE_HOST="::2")
    assert done.returncode == 0
    lines = {line.partition(" =")[0]: line.rpartition("  # ")[2] for line in done.stdout.splitlines() if " = " in line}
    assert lines["port"] == "command line"
    assert lines["host"] == "ONCEGATE_HOST"
    assert lines["upstream"] == f"{file}, line 1"
    assert lines["ttl"] == f"{file}, line 7"
    assert lines["workers"] == lines["lease"] == "default"
    assert lines["wait"] == f"{file}, line 16"
    assert lines["docs_url"] == "default, by prefix"


def test_what_it_prints_is_a_file_with_the_same_settings(file: Path, tmp_path: Path) -> None:
    printed = invoke("config", "--config", str(file)).stdout
    again = tmp_path / "again.toml"
    again.write_text(
        printed.replace("rediss://redis.example:6379/0", "rediss://user:s3cret@redis.example:6379/0?token=s3cret")
    )
    assert load({}, str(again)) == load({}, str(file))
    names = {each.partition(" ")[0] for each in re.findall(r"^(?:# )?([a-z_]+ (?:=|is))", printed, re.M)}
    assert names >= GatewaySettings.model_fields.keys() - {"idempotency", "cors", "worker", "routes"}


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_no_secret_is_in_it(file: Path, form: list[str]) -> None:
    done = invoke("config", "--config", str(file), *form, **SECRETS)
    assert done.returncode == 0
    for secret in ("s3cret", "a-secret-of-32", "a-token-that", "c2VjcmV0"):
        assert secret not in done.stdout + done.stderr
    for name in ("secret", "encryption_keys", "forward_headers"):
        assert name in done.stdout, "that it is set is said"


def test_its_json_is_for_scripts(file: Path) -> None:
    found = json.loads(invoke("config", "--config", str(file), "--json", **SECRETS).stdout)["settings"]
    by_name: dict[str, Any] = {each["name"]: each for each in found}
    assert by_name["port"] == {"name": "port", "value": 1, "source": f"{file}, line 3", "secret": False}
    assert by_name["secret"] == {"name": "secret", "value": None, "source": "ONCEGATE_SECRET", "secret": True}
    assert by_name["routes.1.status"]["value"] == {"402": "success", "5xx": "unknown"}


def test_a_wrong_configuration_is_one_line(file: Path) -> None:
    done = invoke("config", "--config", str(file), "--port", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "oncegate: port (command line): must be a whole number, without a unit\n"


def test_a_file_of_its_own_is_named_as_the_source(tmp_path: Path) -> None:
    mounted = tmp_path / "secret"
    mounted.write_text("a" * 40)
    done = invoke("config", "--upstream", "http://a", ONCEGATE_SECRET_FILE=str(mounted))
    assert re.search(r"# secret is set, and left out +# secret_file \(ONCEGATE_SECRET_FILE\)$", done.stdout, re.M)
    assert "a" * 40 not in done.stdout


# -- the schema -------------------------------------------------------------------------------------------------------


def test_the_schema_is_up_to_date() -> None:
    assert invoke("config", "--schema").stdout == SCHEMA.read_text("utf-8"), "run scripts/docs"


def flaws(text: str) -> list[str]:
    found = Draft202012Validator(json.loads(SCHEMA.read_text("utf-8"))).iter_errors(tomllib.loads(text))
    return [".".join(map(str, each.absolute_path)) for each in found]


def test_every_file_of_settings_in_the_documents_is_of_it() -> None:
    blocks = [
        block
        for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        for block in re.findall(r"^```toml\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
    ]
    blocks += [path.read_text("utf-8") for path in (ROOT / "docs" / "deploy").glob("*.toml")]
    assert len(blocks) > 10
    for block in blocks:
        assert flaws(block) == [], block


@pytest.mark.parametrize(
    "text",
    [
        'upstream = "http://${SERVICE}"\nport = "${PORT}"\nworkers = "${WORKERS}"\nvia = "${VIA}"',
        'namespace = "${NAME}"\nprefix = "/${NAME}"',
        'secret = "${MY_SECRET}"\nencryption_keys = ["${ONE}", "${OTHER}"]',
        '[idempotency]\nscope = ["header:${NAME}"]\nttl = "${TTL}"\non_error = "${ON_ERROR}"',
        '[[routes]]\npath = "/x"\nttl = 1.5\nmethods = ["POST"]\n[routes.status]\n402 = "success"\n5xx = "unknown"',
        '[cors]\norigins = ["*"]\n[jwt]\njwks = "x"\n[worker]\nforward_headers = {Authorization = "${TOKEN}"}',
    ],
)
def test_what_may_be_written_is_of_it(text: str) -> None:
    assert flaws(text) == []


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("ttl = 5", ""),
        ('port = "x"', "port"),
        ("[tls]", ""),
        ('[idempotency]\non_error = "x"', "idempotency.on_error"),
        ("[[routes]]\nttl = 1", "routes.0"),
        ('[[routes]]\npath = "payments"', "routes.0.path"),
        ('[[routes]]\npath = "/x"\nmethods = "POST"', "routes.0.methods"),
        ('[[routes]]\npath = "/x"\n[routes.status]\n99 = "success"', "routes.0.status"),
        ('secret = "itself"', "secret"),
        ("public = [1]", "public.0"),
    ],
)
def test_mistakes_are_not_of_it(text: str, where: str) -> None:
    assert flaws(text) == [where]

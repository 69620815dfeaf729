"""`oncegate openapi`: what goes in and comes out, what is refused, and that a gateway answers as it then says.

Rules of docs/contract.md: R10.1.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.openapi.models import OpenAPI

from oncegate.middleware.outcome.problem_kinds import KINDS
from testing.command_line import invoke, running
from tests.app.probing import probe

PAYMENTS = """\
openapi: 3.1.0  # a service's own words
info: {title: Payments, version: '1.0'}
servers:
  - url: https://api.example/{base}
    variables: {base: {default: v1}}
paths:
  /payments:
    get:
      responses: &answers
        200: {description: done}
    post:
      requestBody:
        content:
          application/json:
            schema: {type: object, required: [amount], properties: {amount: {type: integer}}}
            example: {due: 2026-01-02, country: no, at: 1:30, share: 1e3}
      responses: *answers
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    file = tmp_path / "service.yaml"
    file.write_text(PAYMENTS)
    return file


def config(tmp_path: Path, path: str) -> str:
    file = tmp_path / "oncegate.toml"
    file.write_text(f'upstream = "http://127.0.0.1:9"\n[[routes]]\npath = "{path}"\non_missing_key = "reject"\n')
    return str(file)


def added(*arguments: str) -> Any:
    done = invoke("openapi", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return yaml.safe_load(done.stdout), done.stdout


def required(description: Any) -> list[bool]:
    parameters = description["paths"]["/payments"]["post"]["parameters"]
    return [each["required"] for each in parameters if each["name"] == "Idempotency-Key"]


def test_yaml_comes_out_as_yaml_with_the_gateways_part(spec: Path) -> None:
    description, text = added("--upstream-spec", str(spec))
    OpenAPI.model_validate(description)
    assert required(description) == [False]
    assert description["paths"]["/payments"]["get"] == {"responses": {200: {"description": "done"}}}
    assert {"400", "409", "422"} <= {str(status) for status in description["paths"]["/payments"]["post"]["responses"]}
    assert "&id" not in text, "anchors"
    assert "openapi: 3.1.0" in text


def test_scalars_come_out_as_openapi_reads_them(spec: Path) -> None:
    """YAML 1.1, which PyYAML reads, would make a date, a false and a 90 of them."""
    done = invoke("openapi", "--upstream-spec", str(spec), "--format", "json")
    body = json.loads(done.stdout)["paths"]["/payments"]["post"]["requestBody"]["content"]["application/json"]
    assert body["example"] == {"due": "2026-01-02", "country": "no", "at": "1:30", "share": 1000.0}


def test_json_comes_out_as_json_and_may_come_by_standard_input(tmp_path: Path) -> None:
    file = tmp_path / "service.json"
    given = {"openapi": "3.0.3", "info": {"title": "é", "version": "1"}, "paths": {"/a": {"post": {}}}}
    file.write_text(json.dumps(given))
    _, text = added("--upstream-spec", str(file))
    assert json.loads(text)["info"]["title"] == "é"
    with file.open() as stdin:
        command = [str(Path(sys.executable).with_name("oncegate")), "openapi", "--upstream-spec", "-"]
        piped = subprocess.run(command, stdin=stdin, capture_output=True, text=True)
    assert piped.stdout == text
    as_yaml, _ = added("--upstream-spec", str(file), "--format", "yaml")
    assert as_yaml == json.loads(text)


@pytest.mark.parametrize(
    ("path", "arguments", "expected"),
    [
        ("/v1/payments", [], True),
        ("/payments", [], False),
        ("/payments", ["--prefix", ""], True),
        ("/v2/payments", ["--prefix", "/v2"], True),
    ],
)
def test_policies_are_asked_with_the_path_that_requests_have(
    spec: Path, tmp_path: Path, path: str, arguments: list[str], expected: bool
) -> None:
    description, _ = added("--upstream-spec", str(spec), "--config", config(tmp_path, path), *arguments)
    assert required(description) == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("openapi: [1", "is neither JSON nor YAML (at line 1)"),
        ("just text", "not an OpenAPI 3 description"),
        ('{"swagger": "2.0"}', "not an OpenAPI 3 description"),
        ('{"openapi": "3.1.0", "paths": ["x"]}', "paths is not an object"),
        ("", "not an OpenAPI 3 description"),
        ("a: &a [*a]\nopenapi: 3.1.0", "nests too deep, or holds itself"),
        ("!!python/object/apply:os.system ['exit 3']", "is neither JSON nor YAML"),
        ('{"openapi": "3.1.0", "servers": [{"url": "//[", "variables": 5}], "paths": {}}', "is not a valid OpenAPI"),
        ('{"openapi": "3.1.0", "paths": {"/a": {"post": {"parameters": 5}}}}', "is not a valid OpenAPI"),
        ('{"openapi": "3.1.0", "x": ' + "[" * 99_999, "nests too deep"),
        ("openapi: 3.1.0\nx: 1" + "0" * 5000, "is neither JSON nor YAML"),
        (
            "openapi: 3.1.0\na0: &a0 [x]\n"
            + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
            "values",
        ),
    ],
)
def test_what_is_no_description_is_refused_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "spec"
    file.write_text(text)
    done = invoke("openapi", "--upstream-spec", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"oncegate: {file}: ")
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_that_is_not_there_and_a_wrong_setting_are_refused(spec: Path) -> None:
    gone = invoke("openapi", "--upstream-spec", "/not/there.json")
    line = "oncegate: /not/there.json: can't be read: No such file or directory\n"
    assert (gone.returncode, gone.stderr) == (2, line)
    wrong = invoke("openapi", "--upstream-spec", str(spec), ONCEGATE_IDEMPOTENCY__TTL="never")
    assert wrong.returncode == 2
    assert "idempotency.ttl" in wrong.stderr


def test_half_a_character_comes_out_as_it_went_in(tmp_path: Path) -> None:
    file = tmp_path / "spec"
    file.write_text('{"openapi": "3.1.0", "x": "\\ud800"}')
    done = invoke("openapi", "--upstream-spec", str(file))
    assert (done.returncode, json.loads(done.stdout)["x"]) == (0, "\ud800")


# -- and the gateway answers so ---------------------------------------------------------------------------------------


@pytest.fixture
def gateway() -> Iterator[str]:
    """In front of the demo's payments service."""
    with running("demo", "--port", "0") as demo:
        yield demo.wait_for(r"oncegate in front of it on (http://[^ ]+?)\.?\n")[1]


def test_a_gateway_answers_as_the_description_says(gateway: str, tmp_path: Path) -> None:
    """Odd keys, repeated keys, other payloads under them: whatever comes back is described, in status, type and schema."""
    anything = {"description": "the service's own answer", "content": {"application/json": {}}}
    post = {
        "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
        "responses": dict.fromkeys(("201", "400", "402"), anything),
    }
    file = tmp_path / "demo.json"
    paths = {"/payments": {"post": post}}
    file.write_text(json.dumps({"openapi": "3.1.0", "info": {"title": "demo", "version": "1"}, "paths": paths}))
    description = json.loads(invoke("openapi", "--upstream-spec", str(file)).stdout)
    statuses = probe(description, gateway, 8, headers=["Idempotency-Key"])
    assert {400, 422} <= statuses <= {201} | {kind.status for kind in KINDS.values()} | {402}

"""``oncegate check --openapi``: routes that match no path of the upstream's description, with the nearest one.

Rules of docs/contract.md: R10.5, R10.24.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from oncegate.app.cli.openapi import SpecError, unmatched_routes
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.middleware.rules.settings import Route
from testing.command_line import invoke

ANSWER = {"responses": {"200": {"description": "done"}}}
PATHS = {
    "/payments": {"get": ANSWER, "post": ANSWER},
    "/payments/{id}": {"get": ANSWER, "patch": ANSWER, "parameters": []},
    "/payments/{payment-id}/refunds": {"post": ANSWER},
    "/reports": {"get": ANSWER},
}


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    file = tmp_path / "service.json"
    file.write_text(json.dumps({"openapi": "3.1.0", "info": {"title": "x", "version": "1"}, "paths": PATHS}))
    return file


def lines(spec: Path, *routes: dict[str, Any], prefix: str | None = None) -> list[str]:
    settings = GatewaySettings(upstream="http://a", routes=tuple(Route(**route) for route in routes))
    return unmatched_routes(settings, str(spec), prefix=prefix)


@pytest.mark.parametrize(
    "route",
    [
        {"path": "/payments"},
        {"path": "/payments/*"},
        {"path": "/payments/{id}"},
        {"path": "/payments/{whatever:int}"},
        {"path": "/payments/42", "methods": ["PATCH"]},
        {"path": "/payments/p-*", "methods": ["PATCH"]},
        {"path": "/payments/*/refunds"},
        {"path": "/payments/42/refunds"},
        {"path": "*"},
        {"path": "/nowhere", "methods": []},  # it guards nothing on purpose
    ],
)
def test_a_route_that_matches_is_not_named(spec: Path, route: dict[str, Any]) -> None:
    assert lines(spec, route) == []


@pytest.mark.parametrize(
    ("route", "hint"),
    [
        ({"path": "/paymets"}, 'did you mean "/payments"?'),
        ({"path": "/v1/payments"}, 'did you mean "/payments"?'),
        ({"path": "/payments/*/refund"}, 'did you mean "/payments/{payment-id}/refunds"?'),
        ({"path": "/Payments"}, 'did you mean "/payments"?'),
        ({"path": "/reports"}, "there it has GET alone"),
        ({"path": "/zzz"}, "none of them is near"),
    ],
)
def test_a_route_that_matches_none_is_named_with_the_nearest(spec: Path, route: dict[str, Any], hint: str) -> None:
    (line,) = lines(spec, {"path": "/payments"}, route)
    methods = "POST, PATCH"
    assert line == f'the route "{route["path"]}" ({methods}) matches no path of {spec} and guards nothing: {hint}'


def test_paths_stand_behind_their_server_s_or_a_prefix_that_is_given(spec: Path) -> None:
    described = json.loads(spec.read_text())
    spec.write_text(json.dumps(described | {"servers": [{"url": "https://api.example/v1/"}]}))
    assert lines(spec, {"path": "/v1/payments"}) == []
    assert lines(spec, {"path": "/payments"}) != []
    assert lines(spec, {"path": "/payments"}, prefix="") == []
    assert lines(spec, {"path": "/shop/payments"}, prefix="/shop") == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"paths": []}', "- a", '{"paths": 5, "servers": 3}', "a: [", "\x00"])
def test_what_is_no_description_is_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(SpecError) as raised:
        lines(file, {"path": "/payments"})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "paths", [{}, {"/a": None}, {"/a": 5, "/b": {"post": 1}}, {"": {}}, {"/{": {"post": {}}}, {1: {}}]
)
def test_paths_of_any_shape_are_read(tmp_path: Path, paths: Any) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps({"openapi": "3.0.0", "paths": paths}))
    (line,) = lines(file, {"path": "/payments"})
    assert "matches no path" in line


def test_the_command_names_them_and_fails_where_it_is_strict(spec: Path, tmp_path: Path) -> None:
    config = tmp_path / "o.toml"
    config.write_text('upstream = "http://127.0.0.1:1"\n[[routes]]\npath = "/paymets"\n')
    check = ["check", "--config", str(config), "--openapi", str(spec)]
    done = invoke(*check)
    assert f'the route "/paymets" (POST, PATCH) matches no path of {spec}' in done.stdout
    found = json.loads(invoke(*check, "--json").stdout)["findings"]
    assert [each["verdict"] for each in found if each["area"] == "routes"] == ["advice"]
    config.write_text('upstream = "http://127.0.0.1:1"\n[[routes]]\npath = "/payments"\n')
    assert f"each of them matches a path of {spec}" in invoke(*check).stdout
    wrong = invoke("check", "--config", str(config), "--openapi", str(tmp_path / "absent.json"))
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.count("\n") == 1

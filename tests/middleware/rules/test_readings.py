"""Of all readings of a target that common servers have, the strictest rules count.

Rules of docs/contract.md: R7.6.
"""

import json
import random
import shutil
import subprocess
from collections.abc import Mapping
from urllib.parse import unquote

import pytest

from oncegate.middleware.rules.paths.readings import LONGEST, readings
from oncegate.middleware.rules.policies import Policies
from oncegate.middleware.rules.settings import IdempotencySettings, Route
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering

STRICT = Route.model_validate({"path": "/payments", "on_missing_key": "reject"})
BELOW = Route.model_validate({"path": "/payments/{id}", "on_missing_key": "reject"})

GUARDED = [
    # An authority: Node.js reads `new URL(request.url, base)`.
    b"//h/payments",
    b"/\\h/payments",
    b"\\\\h/payments",
    b"/\\/h/payments",
    b"///h/payments",
    b"//h//payments",
    b"//h/x/../payments",
    b"//h:80/payments",
    b"/%2fh/payments",
    b"/%5Ch%5Cpayments",
    b"//h\\payments",
    # Servlet containers, and mixes of their own
    b"/payments;v=1",
    b"/x/..;/payments",
    b"/a%3f/../payments\\",
    # Cut, decoded again, dots that only some resolve
    b"/payments%3fx",
    b"/payments%23x",
    b"/payments%00x",
    b"/%2570ayments",
    b"/x%252f..%252fpayments",
    b"/a//../../payments",
    # In another case: Express, IIS
    b"/PAYMENTS",
    b"/Payments/",
    b"//h/Payments",
]
GUARDED_BELOW = [
    b"/payments/1",
    b"/payments/a%2fb",
    b"/payments/a%2Fb%5cc",
    b"/payments/..%2fpublic",
    b"/x/../payments/1%2f..%2f..%2fpublic",
    b"/payments/.",
    b"/payments/..",
    b"/payments/%2e%2e",
    b"/x/../payments/%2e%2e",
    b"/PAYMENTS/x%2Fy",
    b"//h/payments/a%2fb",
]


def guards(route: Route, target: bytes) -> bool:
    rules = Policies(IdempotencySettings(), [route])
    found = rules.match("POST", unquote(target.decode()), target)
    return found is not None and found.settings.on_missing_key == "reject"


@pytest.mark.parametrize("target", GUARDED)
async def test_no_reading_of_a_target_gets_around_its_route(door: MakeDoor, target: bytes) -> None:
    there = door(app := Answering(201), routes=[STRICT])
    refused = await there.send(key=None, path=unquote(target.decode()), raw_path=target)
    assert refused.code == "key-missing"
    assert app.calls == 0


@pytest.mark.parametrize("target", GUARDED_BELOW)
def test_nor_around_one_with_a_parameter(target: bytes) -> None:
    assert guards(BELOW, target)


@pytest.mark.parametrize(
    "target", [b"/other", b"/paymentsx", b"/h/payments", b"//payments/h", b"/a%2fb", b"/x/payments", b"/pay%09ments"]
)
def test_what_no_server_takes_for_it_stays_free(target: bytes) -> None:
    assert not guards(STRICT, target)


@pytest.mark.parametrize("target", [b"/payments/1/refunds", b"/payments", b"/Payments/1/2", b"/payments//"])
def test_a_parameter_is_one_segment_in_every_reading(target: bytes) -> None:
    assert not guards(BELOW, target)


def matched(path: str, *routes: Mapping[str, object]) -> str | None:
    found = Policies(IdempotencySettings(), [Route.model_validate(route) for route in routes]).match("POST", path)
    return found.route if found is not None else None


@pytest.mark.parametrize(
    "stricter",
    [
        {"on_missing_key": "reject"},
        {"require_scope": True},
        {"on_missing_key": "generate"},
        {"on_mismatch": "reject"},
        {"on_cache_down": "fail_closed"},
        {"on_unknown": "refuse"},
    ],
)
def test_what_counts_as_stricter(stricter: dict[str, object]) -> None:
    """Each by itself, against a route that is first and lax."""
    lax = IdempotencySettings(on_mismatch="warn", on_cache_down="fail_open", on_unknown="retry")
    routes = [Route(path="/h/payments"), Route.model_validate({"path": "/payments", **stricter})]
    met = [Policies(lax, routes).match("POST", path) for path in ("//h/payments", "/h/payments")]
    assert [policy and policy.route for policy in met] == ["/payments", "/h/payments"]


def test_enforced_is_stricter_than_not() -> None:
    routes = ({"path": "/h/payments", "methods": []}, {"path": "/payments"}, {"path": "*", "methods": []})
    assert matched("/h/payments", *routes) is None
    assert matched("//h/payments", *routes) == "/payments"


def test_of_equals_the_reading_as_we_read_it_counts() -> None:
    assert matched("/H/x;a", {"path": "/H/x;a", "ttl": 5}, {"path": "/h/x", "ttl": 6}) == "/H/x;a"


def test_a_path_too_long_to_be_read_in_all_ways_is_under_the_strictest_rules() -> None:
    assert guards(STRICT, b"/x;" + b"/" * LONGEST)
    assert not guards(STRICT, b"/x" * LONGEST), "there is one way to read it"
    assert not guards(STRICT, b"/X" * LONGEST)


def test_the_number_of_readings_does_not_grow_with_the_path() -> None:
    nasty = "/\\h;x/..;/%252e%252e\\%3f#?\0//A/./../"
    assert all(len(readings(nasty * times, (nasty * times).encode())) <= 20 for times in (1, 10, 100))


_SERVER = """
const targets = JSON.parse(require('fs').readFileSync(0, 'utf8'))
console.log(JSON.stringify(targets.map(target => {
  try { return new URL(target, 'http://x').pathname } catch { return null }
})))
"""
PIECES = [
    "/",
    "//",
    "\\",
    "/\\",
    "h",
    "h:1",
    "payments",
    "PAYMENTS",
    ".",
    "..",
    "%2e",
    "%2E%2e",
    "%2f",
    "%5c",
    ";",
    ";x=1",
]
PIECES += ["/payments", "/payments/1", "/..", "/.", "%2F..%2f", "x", "a@b", "%70ayments", "%00", "%3f", "é"]


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is what is asked")
def test_no_target_that_node_takes_for_a_guarded_path_is_free() -> None:
    """Targets put together at random, and what Node's own parser makes of them. It decodes nothing: a router may, behind it."""
    chance = random.Random(17)
    targets = ["/" + "".join(chance.choices(PIECES, k=chance.randint(1, 9))) for _ in range(20_000)]
    targets += [target.decode() for target in GUARDED + GUARDED_BELOW]
    done = subprocess.run(
        ["node", "-e", _SERVER], input=json.dumps(targets), capture_output=True, text=True, check=True
    )
    taken = 0
    for target, path in zip(targets, json.loads(done.stdout), strict=True):
        for route, segments in ((STRICT, 2), (BELOW, 3)):
            parts = [] if path is None else [unquote(part) for part in path.split("/")]
            if len(parts) == segments and parts[1] == "payments" and parts[-1]:
                taken += 1
                assert guards(route, target.encode()), (target, path)
    assert taken > 200

"""Routes: which request is under which rules.

Rules of docs/contract.md: R7.1, R7.2, R7.3, R7.4, R7.5, R7.7.
"""

import tracemalloc
from typing import Any

import pytest
from pydantic import ValidationError

from oncegate.cache.memory.store import MemoryCache
from oncegate.middleware.http.middleware import IdempotencyMiddleware
from oncegate.middleware.rules.paths.readings import normalise
from oncegate.middleware.rules.policies import Policies
from oncegate.middleware.rules.policy import compile_policy
from oncegate.middleware.rules.settings import IdempotencySettings, Route
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering


def route(path: str, **settings: object) -> Route:
    return Route.model_validate({"path": path, **settings})


def matched(path: str, *routes: Route, method: str = "POST") -> str | None:
    policy = Policies(IdempotencySettings(), routes).match(method, path)
    return policy.route if policy is not None else None


async def test_first_matching_route_counts(door: MakeDoor) -> None:
    routes = [route("/payments/free", on_missing_key="run"), route("/payments/*", on_missing_key="reject"), route("*")]
    there = door(Answering(201), routes=routes)
    assert (await there.send(key=None, path="/payments/free")).status == 201
    assert (await there.send(key=None, path="/payments/1")).code == "key-missing"
    assert (await there.send(key=None, path="/other")).status == 201


@pytest.mark.parametrize(
    "path",
    [
        "/payments",
        "//payments",
        "/payments/",
        "/x/../payments",
        "/./payments",
        "/payments/.",
        "/x//..///payments//",
        "/../payments",
        "/payments;x=1",
        "/;x/payments",
        "/x/..;/payments",
        "/a;b/../payments;c/",
        "\\payments",
        "/x\\..\\payments",
    ],
)
async def test_no_spelling_of_a_path_slips_past_its_route(door: MakeDoor, path: str) -> None:
    there = door(app := Answering(201), routes=[route("/payments", on_missing_key="reject")])
    assert (await there.send(key=None, path=path)).code == "key-missing"
    assert app.calls == 0


def test_of_two_readings_of_a_path_the_stricter_one_counts() -> None:
    free = route("/payments/free", on_missing_key="run")
    strict = route("/payments*", on_missing_key="reject")
    assert matched("/payments/free", free, strict) == "/payments/free"
    for path in ("/payments/x\\..\\free", "/payments/free;x", "/payments;/free"):
        assert matched(path, free, strict) == "/payments*", path
    things = route("/things", methods=("PUT",))
    assert matched("/things;x", things, method="PUT") == "/things"
    assert matched("/others;x", things, method="PUT") is None


async def test_decoded_path_is_matched_and_the_raw_one_is_forwarded(door: MakeDoor) -> None:
    """The server decodes; ``/%70ayments`` must not slip past, nor be changed on its way."""
    there = door(app := Answering(201), routes=[route("/payments", on_missing_key="reject")])
    assert (await there.send(key=None, path="/payments", raw_path=b"/%70ayments")).code == "key-missing"
    assert (await there.send(path="/payments", raw_path=b"//%70ayments/")).status == 201
    assert app.scopes[0]["raw_path"] == b"//%70ayments/"


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("/payments/*", "/payments/1", True),
        ("/payments/*", "/payments/1/refunds", True),
        ("/payments/*", "/payments/", True),
        ("/payments/*", "/payments", False),
        ("/payments*", "/payments", True),
        ("/*/refunds", "/payments/1/refunds", True),
        ("/*/refunds", "/payments/1/refunds/2", False),
        ("/a.c", "/abc", False),
        ("/a+", "/aa", False),
        ("/a*", "/a\nb", True),
        ("*", "/anything/at/all", True),
        ("/", "/", True),
        ("/", "//", True),
        ("/a*a", "/a", False),
        ("/a*a", "/aa", True),
        ("/a*b*b", "/ab", False),
        ("/a*b*b", "/abb", True),
        ("/*/b", "/a/c/b", True),
        ("/*ab*abc", "/ababc", True),
        ("/*abc*ab", "/ababc", False),
    ],
)
def test_star_matches_any_run_of_characters(pattern: str, path: str, matches: bool) -> None:
    assert (matched(path, route(pattern, on_missing_key="reject")) == pattern) is matches


def test_route_is_for_its_methods_and_the_default_for_the_rest() -> None:
    things = route("/things", methods=("PUT",))
    assert matched("/things", things, method="PUT") == "/things"
    assert matched("/things", things, method="POST") == "*"
    assert matched("/others", things, method="PUT") is None
    assert matched("/others", things, method="GET") is None


def test_route_overrides_any_setting_and_leaves_the_others() -> None:
    base = IdempotencySettings(ttl=5, error_ttl=7, on_error="replay")
    policy = compile_policy(base, route("/a", ttl=9, header="X-Key", scope=["header:X-Tenant"]))
    assert (policy.settings.ttl, policy.settings.error_ttl, policy.settings.on_error) == (9, 7, "replay")
    assert policy.key_names == (b"x-key",)
    assert policy.scope_names == (b"x-tenant",)


@pytest.mark.parametrize(
    "wrong", [{"path": "no-slash"}, {"path": "/a", "unknown": 1}, {"path": "/a", "status": {99: "success"}}]
)
def test_wrong_route_fails_at_construction(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Route.model_validate(wrong)


def test_wrong_override_fails_when_the_middleware_is_built() -> None:
    with pytest.raises(ValidationError):
        IdempotencyMiddleware(Answering(), cache=MemoryCache(), routes=[route("/a", ttl=-1)])


@pytest.mark.parametrize("wrong", [{"namespace": "a:b"}, {"namespace": ""}, {"max_in_flight": 0}, {"body_timeout": 0}])
def test_wrong_limits_fail_when_the_middleware_is_built(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must"):
        IdempotencyMiddleware(Answering(), cache=MemoryCache(), **wrong)  # type: ignore[arg-type]  # options of the test's own


def test_normalised_path_is_its_own_normal_form() -> None:
    for path in ("", "/", "//", "/..", "/../../a", "/a/./b/../c/", "a//b", "/a/..", "/..a/...", "/a/%2e%2e/b"):
        normal = normalise(path)
        assert normal.startswith("/")
        assert normalise(normal) == normal
    assert normalise("/a/./b/../c/") == "/a/c"
    assert normalise("/..a/...") == "/..a/..."


async def test_no_methods_switch_enforcement_off_there(door: MakeDoor) -> None:
    """And another method on the path goes no further."""
    off = route("/hooks/*", methods=[])
    there = door(app := Answering(201), routes=[off, route("*", on_missing_key="reject")])
    for _ in range(2):
        call = await there.send(path="/hooks/1")
        assert (call.status, call.value("cache-status")) == (201, None)
    assert app.calls == 2
    assert (await there.send(path="/other", key=None)).code == "key-missing"
    assert matched("/hooks/1", off, method="PUT") is None
    assert matched("/hooks", off) == "*"


async def test_enforcement_for_one_route_only(door: MakeDoor) -> None:
    routes = [route("/payments"), route("*", methods=[])]
    there = door(Answering(201), routes=routes)
    assert (await there.send(path="/payments")).value("cache-status") == "oncegate; fwd=miss; stored; ttl=86400"
    assert (await there.send(path="/payments")).replayed
    assert not any([(await there.send(path="/other")).replayed for _ in range(2)])


@pytest.mark.parametrize(
    "more", [{"on_missing_key": "reject"}, {"mode": "async"}, {"status": {404: "success"}}, {"ttl": 5}]
)
def test_nothing_else_counts_where_enforcement_is_off(more: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="switches enforcement off"):
        route("/a", methods=[], **more)


def scoped(path: str, root: str, raw: bytes | None = None) -> dict[str, Any]:
    return {"path": path, "root_path": root, "raw_path": path.encode() if raw is None else raw}


@pytest.mark.parametrize(
    ("path", "root", "raw"),
    [
        ("/api/pay", "/api", None),  # uvicorn --root-path, and a mount
        ("/pay", "/api", None),  # a server that leaves the root out
        ("/pay", "", None),
        ("/api/pay/", "/api", None),
        ("/a b/pay", "/a b", b"/a%20b/pay"),
        ("/api/pay;x", "/api", None),
        ("/api//h/pay", "/api", None),
    ],
)
async def test_routes_match_what_the_app_routes_by(door: MakeDoor, path: str, root: str, raw: bytes | None) -> None:
    there = door(
        Answering(201), routes=[route("/pay", on_missing_key="reject"), route("/pay/{id}", on_missing_key="reject")]
    )
    assert (await there.send(key=None, **scoped(path, root, raw))).code == "key-missing"


async def test_a_root_that_only_looks_alike_is_none(door: MakeDoor) -> None:
    there = door(
        Answering(201), routes=[route("/pay", on_missing_key="reject"), route("/pay/{id}", on_missing_key="reject")]
    )
    assert (await there.send(key=None, **scoped("/apix/pay", "/api"))).status == 201
    assert (await there.send(key=None, **scoped("/api/pay/a/b", "/api", b"/api/pay/a%2fb"))).code == "key-missing"
    assert (await there.send(key=None, **scoped("/api/pay/a/b", "/api"))).status == 201


def test_routes_of_long_paths_are_not_kept() -> None:
    """Whoever sends them would fill the memory: 4,000 of 60 KB are 240 MB."""
    policies = Policies(IdempotencySettings(), [route("/a*")])
    tracemalloc.start()
    try:
        for number in range(300):
            assert policies.match("POST", "/a" + "x" * 60_000 + str(number)) is not None
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000


@pytest.mark.parametrize("name", ["Connection", "Proxy-Authenticate", "proxy-authorization", "TE", "Upgrade"])
def test_a_hop_by_hop_field_carries_no_key_and_travels_with_no_command(name: str) -> None:
    for setting in ({"header": name}, {"aliases": [name]}, {"forward_request_headers": [name]}):
        with pytest.raises(ValidationError, match=name):
            IdempotencySettings.model_validate(setting)


@pytest.mark.parametrize(
    "name", ["oncegate-aggregate", "Oncegate-Sequence", "oncegate-anything", "Idempotency-Attempt"]
)
def test_what_a_worker_writes_for_a_service_is_taken_from_no_client(name: str) -> None:
    """A service behind `worker --forward` believes these, as numbers that the gateway has given out."""
    with pytest.raises(ValidationError, match="written anew for a command"):
        IdempotencySettings(forward_request_headers=("x-user", name))
    with pytest.raises(ValidationError, match="written anew for a command"):
        Policies(IdempotencySettings(), [route("/x", forward_request_headers=[name])])

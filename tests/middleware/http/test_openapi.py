"""What enforcement adds to a description: by route policy, without touching what was there, and only once."""

from copy import deepcopy
from typing import Any

import pytest
from fastapi.openapi.models import OpenAPI
from hypothesis import given
from hypothesis import strategies as st

from oncegate.middleware.http.apps.openapi import NotOpenAPI, describe
from oncegate.middleware.outcome.problem_kinds import KINDS
from oncegate.middleware.rules.policies import Policies
from oncegate.middleware.rules.settings import IdempotencySettings, Route

OK: dict[str, Any] = {"200": {"description": "done"}}


def spec(paths: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": paths, **more}


def described(paths: dict[str, Any], *routes: Route, prefix: str = "", components: Any = None, **settings: Any) -> Any:
    given = spec(paths, **({"components": components} if components else {}))
    before = deepcopy(given)
    rules = Policies(IdempotencySettings(**settings), routes)
    result = describe(given, rules, prefix=prefix)
    assert given == before, "what was given was changed"
    assert describe(result, rules, prefix=prefix) == result, "twice is not once"
    OpenAPI.model_validate(result)
    return result


def keys(operation: Any) -> list[Any]:
    return [each for each in operation.get("parameters", ()) if each.get("name", "").lower() == "idempotency-key"]


def test_enforced_operations_get_the_header_and_the_problems_and_others_nothing() -> None:
    result = described({"/payments": {"post": {"responses": OK}, "get": {"responses": OK}}})
    post, get = result["paths"]["/payments"]["post"], result["paths"]["/payments"]["get"]
    assert get == {"responses": OK}
    assert [key["required"] for key in keys(post)] == [False]
    statuses = {str(kind.status) for slug, kind in KINDS.items() if slug != "upgrade-unsupported"} - {"412", "428"}
    assert set(post["responses"]) == statuses | {"200"}
    assert {"400", "409", "422"} <= statuses
    assert "Idempotent-Replayed" in post["responses"]["200"]["headers"]
    assert "Retry-After" in post["responses"]["409"]["headers"]
    schema = post["responses"]["422"]["content"]["application/problem+json"]["schema"]
    assert result["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["properties"]["code"]["enum"]


def test_a_route_that_numbers_its_commands_gets_what_is_said_of_versions() -> None:
    route = Route(path="/orders/*", mode="async", on_missing_key="reject", aggregate="path")
    responses = described({"/orders/{id}": {"post": {"responses": {}}}}, route)["paths"]["/orders/{id}"]["post"][
        "responses"
    ]
    assert {"202", "412", "428"} <= set(responses)
    assert "version-conflict" in responses["409"]["description"]
    assert "sequence" in responses["202"]["content"]["application/json"]["schema"]["properties"]


def test_each_route_gets_what_its_policy_says() -> None:
    routes = (
        Route(path="/payments/*", on_missing_key="reject", require_scope=True, on_unknown="retry"),
        Route(path="/files/*", methods=("PUT",), header="X-Key"),
    )
    operation = {"responses": OK}
    paths = {path: {"post": operation, "put": operation} for path in ("/payments/{id}", "/files/{id}", "/others")}
    result = described(paths, *routes)["paths"]
    strict = result["/payments/{id}"]["post"]
    assert keys(strict)[0]["required"] is True
    assert "key-missing" in strict["responses"]["400"]["description"]
    assert "caller-missing" in strict["responses"]["401"]["description"]
    assert list(strict["responses"]["401"]["headers"]) == ["WWW-Authenticate"]
    assert "outcome-unknown" not in strict["responses"]["409"]["description"]
    assert result["/payments/{id}"]["put"] == operation
    assert result["/files/{id}"]["put"]["parameters"][0]["name"] == "X-Key"
    assert "key-missing" not in result["/others"]["post"]["responses"]["400"]["description"]


def test_where_commands_are_accepted_there_is_a_202() -> None:
    paths: dict[str, Any] = {path: {"post": {"responses": deepcopy(OK)}} for path in ("/a", "/b", "/c", "/d")}
    paths["/c"]["post"]["responses"]["202"] = {"description": "Theirs"}
    paths["/d"]["post"]["responses"][202] = {"description": "Theirs, by YAML"}
    routes = [Route(path="/a", mode="async"), *(Route(path=path, mode="either") for path in ("/c", "/d"))]
    result = described(paths, *routes)["paths"]
    accepted = result["/a"]["post"]["responses"]["202"]
    assert {"Location", "Preference-Applied", "Idempotent-Replayed"} <= set(accepted["headers"])
    assert "202" not in result["/b"]["post"]["responses"]
    assert result["/c"]["post"]["responses"]["202"]["description"] == "Theirs"
    assert "202" not in result["/d"]["post"]["responses"]


def test_paths_are_matched_behind_their_prefix() -> None:
    route = Route(path="/v1/payments", on_missing_key="reject")
    for prefix, required in (("/v1", True), ("/v1/", True), ("", False)):
        result = described({"/payments": {"post": {"responses": OK}}}, route, prefix=prefix)
        assert keys(result["paths"]["/payments"]["post"])[0]["required"] is required


@pytest.mark.parametrize("level", ["operation", "path"])
@pytest.mark.parametrize("by_reference", [True, False])
def test_a_key_header_that_is_there_is_kept_and_required_where_the_policy_says_so(
    level: str, by_reference: bool
) -> None:
    own = {"name": "idempotency-key", "in": "header", "schema": {"type": "string"}, "description": "my words"}
    listed = [{"$ref": "#/components/parameters/Key"} if by_reference else own]
    operation: dict[str, Any] = {"responses": OK, **({"parameters": listed} if level == "operation" else {})}
    item = {"post": operation, "get": {"responses": OK}, **({"parameters": listed} if level == "path" else {})}
    components = {"parameters": {"Key": own}}
    kept = described({"/payments": item}, components=components)["paths"]["/payments"]
    assert kept["post"].get("parameters") == operation.get("parameters")
    strict = described({"/payments": item}, components=components, on_missing_key="reject")["paths"]["/payments"]
    assert strict["post"]["parameters"] == [{**own, "required": True}]
    assert strict["get"] == {"responses": OK}


def test_responses_that_are_there_are_added_to() -> None:
    components = {"responses": {"Conflict": {"description": "Sold out", "content": {"application/json": {}}}}}
    own = {"type": "object"}
    responses = {
        **OK,
        "409": {"$ref": "#/components/responses/Conflict"},
        "422": {"description": "Wrong", "content": {"application/problem+json": {"schema": own}}},
        "413": {"$ref": "https://elsewhere.example/spec.json#/x"},
    }
    result = described({"/a": {"post": {"responses": responses}}}, components=components)
    made = result["paths"]["/a"]["post"]["responses"]
    assert made["409"]["description"].startswith("Sold out\n\nOr a problem: `in-flight`")
    assert set(made["409"]["content"]) == {"application/json", "application/problem+json"}
    assert made["422"]["content"]["application/problem+json"]["schema"]["anyOf"][0] == own
    assert made["413"] == responses["413"]
    assert result["components"]["responses"] == components["responses"]


def test_an_operation_that_says_nothing_is_one() -> None:
    result = described({"/a": {"post": {}}})
    assert "409" in result["paths"]["/a"]["post"]["responses"]


def test_a_circle_of_references_ends() -> None:
    components = {"responses": {"A": {"$ref": "#/components/responses/B"}, "B": {"$ref": "#/components/responses/A"}}}
    responses = {**OK, "409": {"$ref": "#/components/responses/A"}}
    rules = Policies(IdempotencySettings())
    assert describe(spec({"/a": {"post": {"responses": responses}}}, components=components), rules)


@pytest.mark.parametrize(
    "wrong", [{}, [], "x", None, {"swagger": "2.0"}, {"openapi": 3}, {"openapi": "3.1.0", "paths": []}]
)
def test_what_is_no_description_is_refused(wrong: Any) -> None:
    if wrong == {"openapi": "3.1.0", "paths": []}:
        wrong = {"openapi": "3.1.0", "paths": ["x"]}
    with pytest.raises(NotOpenAPI):
        describe(wrong, Policies(IdempotencySettings()))


@given(
    st.dictionaries(
        st.text(max_size=10),
        st.none() | st.dictionaries(st.sampled_from(["post", "get", "parameters", "x"]), st.just({"responses": {}})),
    )
)
def test_odd_paths_break_nothing(paths: Any) -> None:
    for item in paths.values():
        if item and "parameters" in item:
            item["parameters"] = []
    describe(spec(paths), Policies(IdempotencySettings()))


@pytest.mark.parametrize(
    ("pattern", "words", "example"), [("uuid7", "a UUID of version 7", False), ("uuid", "a UUID", True)]
)
def test_the_form_that_keys_have_is_said_and_no_other_is_given_as_an_example(
    pattern: str, words: str, example: bool
) -> None:
    result = described({"/payments": {"post": {"responses": OK}}}, key_pattern=pattern)
    (key,) = keys(result["paths"]["/payments"]["post"])
    assert f"The key is {words}" in key["description"]
    assert ("example" in key) is example

"""Where a value came from: which line of the file, which variable.

Rules of docs/contract.md: R10.22.
"""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.app.settings.loading.origins import Origins, lines_of

TEXT = """\
# a comment
upstream = "http://a"

trusted_proxies = [  # of two lines
  "10.0.0.0/8",
]
cors.origins = ["https://a"]

[idempotency]
ttl = 5
drop_headers = ["[routes]",
  'x = 1']

# [[routes]]
[[routes]]
path = "/a"

[routes.status]
402 = "success"
"5xx" = "unknown"

[[ routes ]]
path = '''
/b'''
status = {402 = "success"}
"""


def test_each_setting_has_the_line_on_which_it_begins() -> None:
    assert lines_of(TEXT) == {
        ("upstream",): 2,
        ("trusted_proxies",): 4,
        ("cors",): 7,
        ("cors", "origins"): 7,
        ("idempotency",): 9,
        ("idempotency", "ttl"): 10,
        ("idempotency", "drop_headers"): 11,
        ("routes", 0): 15,
        ("routes", 0, "path"): 16,
        ("routes", 0, "status"): 18,
        ("routes", 0, "status", "402"): 19,
        ("routes", 0, "status", "5xx"): 20,
        ("routes", 1): 22,
        ("routes", 1, "path"): 23,
        ("routes", 1, "status"): 25,
        ("routes", 1, "status", "402"): 25,
    }


@pytest.mark.parametrize(
    "text", ["", "# x", "x", "x = [", "[", "[[a]]", "a = 1\n]\nb = 2", "\x00", "[a]\n[a]", "a = 1\na = 2"]
)
def test_what_is_no_toml_has_lines_up_to_its_fault(text: str) -> None:
    assert set(lines_of(text).values()) <= {1, 2}


VALUES = st.one_of(st.integers(), st.booleans(), st.lists(st.integers(), max_size=3))
NAMES = st.sampled_from(["a", "b", "c"])


@given(
    st.dictionaries(NAMES, VALUES),
    st.lists(st.tuples(st.sampled_from(["[t]", "[u.v]", "[[l]]", "[[u.l]]"]), st.dictionaries(NAMES, VALUES))),
)
def test_every_value_of_a_file_has_a_line_that_begins_with_its_name(
    top: dict[str, Any], tables: list[tuple[str, dict[str, Any]]]
) -> None:
    parts = ["", *(head for head, _ in tables)]
    text = "\n".join(
        "\n".join([head, *(f"{name} = {str(value).lower()}" for name, value in values.items())])
        for head, values in zip(parts, [top, *(values for _, values in tables)], strict=True)
    )
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return  # one table twice
    lines, found = text.split("\n"), lines_of(text)
    leaves = [*_leaves(data, ())]
    assert len({found[way] for way in leaves}) == len(leaves)
    for way in leaves:
        assert lines[found[way] - 1].startswith(f"{way[-1]} = ")


def _leaves(value: Any, way: tuple[Any, ...]) -> Any:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, (*way, name))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*way, index))
    else:
        yield way


def test_the_command_line_comes_before_the_environment_and_that_before_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("oncegate_Port", "2")
    monkeypatch.setenv("ONCEGATE_IDEMPOTENCY", "{}")
    monkeypatch.setenv("ONCEGATE_IDEMPOTENCY__TTL", "5")
    environment = {"port": "2", "idempotency": {"ttl": "5", "lease": "7"}}
    origins = Origins({"host": "h"}, environment, tomllib.loads(TEXT) | {"host": "h", "port": 1}, "o.toml", TEXT)
    assert origins.of(("host",)) == "command line"
    assert origins.of(("port",)) == "oncegate_Port"
    assert origins.of(("idempotency", "ttl")) == "ONCEGATE_IDEMPOTENCY__TTL"
    assert origins.of(("idempotency", "lease")) == "ONCEGATE_IDEMPOTENCY"
    assert origins.of(("upstream",)) == "o.toml, line 2"
    assert origins.of(("trusted_proxies", 0)) == "o.toml, line 4"
    assert origins.of(("routes", 1, "path")) == "o.toml, line 23"
    assert origins.of(("workers",)) is None
    assert origins.of(("routes", 2)) is None

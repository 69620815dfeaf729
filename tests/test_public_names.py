"""What ``import oncegate`` offers: seen by completion and help, of one tree of errors, described on one page.

Rules of docs/contract.md: R12.8.
"""

import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

import oncegate
from oncegate import CommandProcessor, IdempotencySettings, OncegateError, OutcomeUnknown, OutcomeUnknownError, Route
from oncegate.middleware.calls.processor import ProcessorOptions
from oncegate.middleware.rules.settings import Overrides
from oncegate.sql import Inbox, Outbox
from oncegate.sql.inbox.arguments import Named, NamedEach
from oncegate.sql.outbox.outbox import MessageOptions

ROOT = Path(__file__).parent.parent


def test_completion_sees_every_name_before_it_is_loaded() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", "import oncegate; print(*dir(oncegate))"], capture_output=True, text=True
    )
    assert set(oncegate.__all__) <= set(shown.stdout.split()), shown.stderr


def test_help_shows_every_name() -> None:
    text = pydoc.plain(pydoc.render_doc(oncegate))
    assert [name for name in oncegate.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_every_name_is_there() -> None:
    assert len(set(oncegate.__all__)) == len(oncegate.__all__)
    assert [name for name in oncegate.__all__ if getattr(oncegate, name, None) is None] == []


def test_every_error_has_the_same_base() -> None:
    found = [getattr(oncegate, name) for name in oncegate.__all__]
    errors = [each for each in found if isinstance(each, type) and issubclass(each, BaseException)]
    assert len(errors) >= 17
    assert [each for each in errors if not issubclass(each, OncegateError)] == []


def test_an_unknown_outcome_is_caught_by_one_name() -> None:
    with pytest.raises(OutcomeUnknown):
        raise OutcomeUnknownError("nobody knows", "record")


def test_a_route_may_override_every_setting_and_nothing_else() -> None:
    settings, overrides = IdempotencySettings.model_json_schema(), Overrides.model_json_schema()
    for name, schema in settings["properties"].items():
        limits = {key: value for key, value in schema.items() if key not in ("default", "description", "title")}
        override = dict(overrides["properties"][name])
        assert override.pop("default") is None, name
        assert override["anyOf"] == limits.get("anyOf", [limits, {"type": "null"}]), name
    assert list(overrides["properties"]) == list(settings["properties"])


def test_what_a_route_does_not_give_is_as_the_settings_say() -> None:
    base = IdempotencySettings(ttl=5, scope=["header:X-Tenant"])
    route = Route(path="/x", lease=7, ttl=None, on_missing_key="run")
    rules = route.settings(base)
    assert (rules.ttl, rules.lease, rules.on_missing_key) == (5, 7, "run")
    assert rules == IdempotencySettings(ttl=5, scope=["header:X-Tenant"], lease=7, on_missing_key="run")
    assert repr(Route(path="/x", lease=7)) == "Route(lease=7.0, path='/x')"


def test_type_checkers_know_every_keyword_that_a_function_of_several_kinds_takes() -> None:
    """(That there are no others, mypy sees.)"""
    for function, options in (
        (CommandProcessor.__init__, ProcessorOptions),
        (Inbox.first, Named),
        (Inbox.first_many, NamedEach),
        (Outbox.add, MessageOptions),
    ):
        parameters = inspect.signature(function).parameters.values()
        keywords = [each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
        assert keywords == list(inspect.get_annotations(options)), function


def test_lists_are_kept_as_tuples() -> None:
    settings = IdempotencySettings(aliases=["X-Key"], scope=["header:X-Tenant"], drop_headers=["Server"])
    assert (settings.aliases, settings.scope, settings.drop_headers) == (("X-Key",), ("header:X-Tenant",), ("Server",))
    assert Route(path="/x", methods=["PUT"]).methods == ("PUT",)
    with pytest.raises(ValidationError):
        IdempotencySettings(scope=[])
    with pytest.raises(ValidationError):
        IdempotencySettings(scope="header:Authorization")


def test_the_reference_has_every_public_name() -> None:
    page = (ROOT / "docs/reference.md").read_text("utf-8")
    assert sorted(re.findall(r"^### `(?:oncegate\.)?(\w+)", page, re.M)) == sorted(oncegate.__all__)

"""A setting's values stand in one place: each one has a meaning, and is as the gateway's description says."""

from dataclasses import fields
from typing import Any, get_args

import orjson
import pytest

from oncegate import IdempotencySettings, Route
from oncegate.app.operators.pages.for_callers.policy import published
from oncegate.middleware.rules.policy import Policy, compile_policy
from tests.app.described import DESCRIPTION, conforms

SETTINGS = {
    name: values
    for name, field in IdempotencySettings.model_fields.items()
    if len(values := [each for each in get_args(field.annotation) if isinstance(each, str)]) > 1
}


def rules_of(policy: Policy) -> dict[str, Any]:
    """What is decided by: all but the settings themselves."""
    return {each.name: getattr(policy, each.name) for each in fields(policy) if each.name != "settings"}


@pytest.mark.parametrize("name", SETTINGS)
def test_each_value_of_a_setting_means_something_else(name: str) -> None:
    """(A value that the rules don't know would pass for another one.)"""
    found = [rules_of(compile_policy(IdempotencySettings.model_validate({name: value}))) for value in SETTINGS[name]]
    assert len(found) > 1
    assert [one for at, one in enumerate(found) if one in found[:at]] == []


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in SETTINGS.items() for value in values])
def test_each_value_is_served_as_it_is_described(name: str, value: str) -> None:
    policy = compile_policy(IdempotencySettings.model_validate({name: value}))
    shown = orjson.loads(published([(policy, ["POST"])], "0" * 12, lambda _: True))
    conforms(shown, DESCRIPTION["components"]["schemas"]["Policy"])


@pytest.mark.parametrize("mode", get_args(Route.model_fields["mode"].annotation))
def test_each_mode_is_served_as_it_is_described(mode: str) -> None:
    policy = compile_policy(
        IdempotencySettings(on_missing_key="reject"), Route.model_validate({"path": "/x", "mode": mode})
    )
    shown = orjson.loads(published([(policy, ["POST"])], "0" * 12, lambda _: True))
    conforms(shown, DESCRIPTION["components"]["schemas"]["Policy"])

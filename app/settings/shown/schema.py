"""A JSON Schema of the file of settings, by which editors complete and check it."""

from typing import Any, Final

from oncegate.app.settings.gateway import GatewaySettings

_VARIABLE: Final = {"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*\}"}
"""A value that is taken from the environment, which may stand for any."""
_ELSEWHERE: Final = ("secret", "encryption_keys")
"""Settings that are only named in the file."""


def schema() -> dict[str, Any]:
    """The schema. Nothing is required: the command line and the environment may give what the file doesn't."""
    made = GatewaySettings.model_json_schema()
    del made["required"]
    for model in (made, *made["$defs"].values()):
        properties = model.get("properties", {})
        for name, given in properties.items():
            properties[name] = _property(given)
    for name in _ELSEWHERE:
        properties = made["properties"]
        several = {"type": "array", "items": _VARIABLE}
        properties[name] = {"description": properties[name]["description"], "anyOf": [_VARIABLE, several]}
    about = "The settings of oncegate, an HTTP gateway that enforces idempotency keys"
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **made,
        "title": "oncegate.toml",
        "description": about,
    }


def _property(given: dict[str, Any]) -> dict[str, Any]:
    """A setting's schema, where a variable may stand for a value, in a list too."""
    rest = {name: value for name, value in given.items() if name not in ("title", "default", "description")}
    kept = {name: given[name] for name in ("description", "default") if given.get(name) is not None}
    return kept | _widened(rest)


def _widened(given: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in given:
        choices = [_widened(each) for each in given["anyOf"] if each.get("type") != "null"]
        choices = [each for choice in choices for each in choice.get("anyOf", [choice])]
        return {"anyOf": [each for number, each in enumerate(choices) if each not in choices[:number]]}
    for inner in ("items", "additionalProperties"):
        if isinstance(given.get(inner), dict):
            given = {**given, inner: _widened(given[inner])}
    takes_any_text = given.get("type") == "string" and not given.keys() & {"pattern", "enum"}
    if takes_any_text or "$ref" in given or given.get("type") in ("array", "object"):
        return given
    return {"anyOf": [given, _VARIABLE]}

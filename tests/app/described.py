"""openapi/oncegate.yaml, and whether a value is as it says."""

from pathlib import Path
from typing import Any

import httpx
import yaml
from jsonschema import Draft202012Validator

ROOT = Path(__file__).parent.parent.parent
DESCRIPTION: dict[str, Any] = yaml.load((ROOT / "openapi/oncegate.yaml").read_text("utf-8"), yaml.CSafeLoader)


def conforms(value: Any, schema: dict[str, Any]) -> None:
    whole = {**schema, "components": DESCRIPTION["components"]}
    Draft202012Validator(whole, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(value)


def resolved(value: dict[str, Any]) -> dict[str, Any]:
    found: Any = DESCRIPTION
    for part in value["$ref"].removeprefix("#/").split("/") if "$ref" in value else []:
        found = found[part]
    return found if "$ref" in value else value


def assert_described(answer: httpx.Response, response: dict[str, Any]) -> None:
    """``answer`` is of the type, the schema and the headers of the described ``response``."""
    content_type = answer.headers["content-type"].partition(";")[0]
    value = answer.text if content_type.startswith(("text/", "application/openmetrics")) else answer.json()
    conforms(value, response["content"][content_type]["schema"])
    for name, header in response["headers"].items():
        header, value = resolved(header), answer.headers.get(name)
        assert value is not None or not header.get("required"), name
        if value is not None:
            conforms(int(value) if header["schema"].get("type") == "integer" else value, header["schema"])


def as_described(answer: httpx.Response) -> httpx.Response:
    """``answer`` itself, once it was held against the operation of records/ or dead-letters/ that it comes from.

    What is not there, and another method, are the problem of an operation.
    """
    names = answer.request.url.path.removeprefix("/_oncegate").split("/")
    names[2:3] = ["{id}" if name not in ("", "find", "errors", "unknown") else name for name in names[2:3]]
    names[3:4] = ["{group}" if names[2] == "errors" else name for name in names[3:4]]
    operation = DESCRIPTION["paths"].get("/".join(names), {}).get(answer.request.method.lower(), {"responses": {}})
    response = operation["responses"].get(str(answer.status_code))
    if response is not None:
        assert_described(answer, response)
    else:
        assert answer.status_code in (404, 405), answer.text
        conforms(answer.json(), {"$ref": "#/components/schemas/OperationProblem"})
    return answer

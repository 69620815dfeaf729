"""Prints docs/configuration.md: every setting with its default and meaning, from the settings' own declarations."""

import sys
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from oncegate.app.settings.cors import CorsSettings
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.worker import WorkerSettings
from oncegate.middleware.rules.settings import IdempotencySettings, Route
from oncegate.middleware.tokens.settings import JwtSettings

HEAD = """\
# Configuration

Generated from app/settings/gateway.py, app/settings/cors.py, app/settings/worker.py, middleware/rules/settings.py and
middleware/tokens/settings.py by `scripts/docs`: change it there.

Command line (`oncegate serve --help`) over environment over TOML file (`--config FILE`, or `ONCEGATE_CONFIG`) over defaults.
In the environment a setting is `ONCEGATE_` and its name, in a table with two underscores: `ONCEGATE_UPSTREAM`,
`ONCEGATE_IDEMPOTENCY__TTL`; lists and `ONCEGATE_ROUTES` are written as JSON. In the file, `"${NAME}"` is taken from the
environment. A wrong or unknown setting stops the start with one line that names it, and exit code 2. Times are in seconds,
sizes in bytes. `oncegate config` prints what is in effect and where each value came from; editors complete and check the file by
[`oncegate.schema.json`](oncegate.schema.json) (`oncegate config --schema`).
"""
JWT = """
## `[jwt]`

Needed where a `scope` names a token's claim, and looked at nowhere else. See [security](security.md#callers-with-tokens).
"""
CORS = """
## `[cors]`

For what the gateway answers itself, and for replays. See [the questions](faq.md#can-scripts-in-browsers-call-it).
"""
WORKER = """
## `[worker]`

What `oncegate worker` goes by; the gateway leaves it alone. See [worker.md](worker.md).
"""
ROUTES = """
## Each `[[routes]]`

The first route that matches counts. Any setting of `[idempotency]` can be given too, and overrides it there.
"""
ROUTE_MEANING = {
    "path": "matched against the decoded, normalised path; `*` matches any run of characters, `{id}` (`{id:int}`) one segment, "
    "`{rest:path}` any run. Of all readings that servers have of a target, the strictest rules count: "
    "see [security](security.md#paths)",
    "methods": "the methods under enforcement; `[]`: enforcement is off on this path",
    "mode": "execute a request at once, accept it to be processed later, or whichever it asks for (`Prefer: respond-async`)",
    "stream": "the Redis stream that accepted commands go to",
    "consumer": "whose processing the status of a command tells of; without: the stream's name",
    "aggregate": "what an accepted command is about, so that it gets a number: `path` (what the first `*` stands for) or "
    "`header:NAME`. See [async](async.md#numbers-and-expected-versions)",
    "require_version": "refuse a command that doesn't say which version of its aggregate it expects",
    "status": 'what a status says of the command: `402 = "success"`; success, failure, release or unknown',
}


def main() -> None:
    """Write the page to standard output."""
    lines = [
        HEAD,
        "## Top level",
        "",
        *table(GatewaySettings, without=("idempotency", "jwt", "cors", "worker", "routes")),
    ]
    lines += ["", "## `[idempotency]`", "", *table(IdempotencySettings)]
    lines += [JWT, *table(JwtSettings), CORS, *table(CorsSettings), WORKER, *table(WorkerSettings)]
    lines += [ROUTES, *table(Route, without=tuple(IdempotencySettings.model_fields)), ""]
    sys.stdout.write("\n".join(lines))


def table(model: type[BaseModel], without: tuple[str, ...] = ()) -> list[str]:
    """The fields of ``model`` with their defaults and meanings, as lines of Markdown."""
    lines = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for name, field in model.model_fields.items():
        if name not in without:
            meaning = (field.description or ROUTE_MEANING[name]).replace("|", "\\|")
            lines.append(f"| `{name}` | {_default(field)} | {meaning}{_choices(field)} |")
    return lines


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True) if not field.is_required() else PydanticUndefined
    if value is PydanticUndefined:
        return "(required)"
    if value is None:
        return "(none)"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, tuple):
        return "`[" + ", ".join(f'"{item}"' for item in value) + "]`"
    return f"`{value}`"


def _choices(field: FieldInfo) -> str:
    choices = [f"`{choice}`" for choice in get_args(field.annotation) if isinstance(choice, str)]
    return f" ({', '.join(choices)})" if len(choices) > 1 else ""


if __name__ == "__main__":
    main()

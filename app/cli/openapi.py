"""``oncegate openapi``: adds what the gateway does to an upstream's OpenAPI description, by route policy.

JSON stays JSON and YAML stays YAML, unless ``out`` is given; what isn't ours is left unchanged, except for comments.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from oncegate.app.settings.gateway import GatewaySettings
from oncegate.middleware.http.apps.advice import Endpoint, unmatched
from oncegate.middleware.http.apps.openapi import METHODS, NotOpenAPI, describe
from oncegate.middleware.rules.policies import Policies

Format = Literal["json", "yaml"]
_PARAMETER = re.compile(r"(\{[^{}/]*\})")
_NOTHING = re.compile(r"(?!)")


class SpecError(Exception):
    """The description can't be read. The text is one line for the operator."""


def describe_upstream(settings: GatewaySettings, file: str, *, prefix: str | None, out: Format | None) -> str:
    """The description in ``file`` (``-`` for standard input), with the gateway's part, as text in the format ``out``.

    ``prefix`` is what stands before its paths in requests; by default the path of its first server. Raises `SpecError`.
    """
    spec, read_as = _read(file)
    try:
        before = _server_path(spec) if prefix is None else prefix
        described = describe(spec, Policies(settings.idempotency, settings.routes), prefix=before)
    except NotOpenAPI as error:
        raise SpecError(f"{file}: {error}") from None
    except (AttributeError, TypeError, ValueError):  # anything else that is given as a description
        raise SpecError(f"{file}: is not a valid OpenAPI description") from None
    if (out or read_as) == "json":
        return _to_json(described)
    return _to_yaml(described)


class _Path(NamedTuple):
    """A path of a description, as `Endpoint` has a route of an app's."""

    path_regex: re.Pattern[str]


def unmatched_routes(settings: GatewaySettings, file: str, *, prefix: str | None) -> list[str]:
    """A line for each of the routes that matches no path of the description in ``file``. Raises `SpecError`."""
    spec, _ = _read(file)
    paths = spec.get("paths") if isinstance(spec, Mapping) else None
    if not isinstance(paths, Mapping):
        raise SpecError(f"{file}: is not an OpenAPI description: it has no paths")
    before = _server_path(spec) if prefix is None else prefix
    found = []
    for name, item in paths.items():
        path, operations = f"{before.rstrip('/')}{name}", item if isinstance(item, Mapping) else {}
        methods = frozenset(each.upper() for each in operations if each in METHODS)
        spelled = "".join("[^/]+" if part.startswith("{") else re.escape(part) for part in _PARAMETER.split(path))
        found.append(Endpoint(path, methods, _Path(re.compile(f"^{spelled}$"))))
    otherwise = "none of them is near" if found else "it has none"
    return [
        *unmatched(
            found or [Endpoint("", frozenset(), _Path(_NOTHING))],
            settings.idempotency,
            settings.routes,
            whose=file,
            otherwise=otherwise,
        )
    ]


def _read(file: str) -> tuple[Any, Format]:
    try:
        text = Path("/dev/stdin" if file == "-" else file).read_text("utf-8")
    except OSError as error:
        raise SpecError(f"{file}: can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{file}: is not UTF-8 text") from None
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text), "json"
        except RecursionError:
            raise SpecError(f"{file}: nests too deep") from None
        except ValueError:
            pass  # YAML's flow style looks like it
    return _from_yaml(file, text), "yaml"


def _server_path(spec: Any) -> str:
    """The path that the first server's URL puts before all others, with its variables' defaults."""
    servers = spec.get("servers") if isinstance(spec, Mapping) else None
    server = servers[0] if isinstance(servers, list) and servers else None
    if not isinstance(server, Mapping):
        return ""
    url = str(server.get("url", ""))
    for name, variable in (server.get("variables") or {}).items():
        url = url.replace(f"{{{name}}}", str(variable.get("default", "")))
    return urlsplit(url).path


def _from_yaml(file: str, text: str) -> Any:
    yaml = _yaml(file)

    class Loader(yaml.SafeLoader):  # type: ignore[name-defined,misc]  # PyYAML's parameters, and no stubs
        """YAML 1.2's scalars, as OpenAPI has them: 1.1's would make false of ``no``, a date of 2026-01-02, 90 of 1:30."""

        yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's way

    for tag, pattern, first in (
        ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
        ("null", r"~|null|Null|NULL|", "~nN\0"),
        ("int", r"[-+]?[0-9]+", "-+0123456789"),
        ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
        ("merge", r"<<", "<"),
    ):
        expression = re.compile(rf"^(?:{pattern})$")
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", expression, [*first.replace("\0", ""), ""])
    Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node)))
    Loader.add_constructor("tag:yaml.org,2002:float", lambda loader, node: float(loader.construct_scalar(node)))
    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: a number with thousands of digits
        mark = getattr(error, "problem_mark", None)
        where = f" (at line {mark.line + 1})" if mark is not None else ""
        raise SpecError(f"{file}: is neither JSON nor YAML{where}") from None


def _to_json(described: Any) -> str:
    text = json.dumps(described, indent=2, ensure_ascii=False) + "\n"
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character, as JSON can spell it
        return json.dumps(described, indent=2) + "\n"
    return text


def _to_yaml(described: Any) -> str:
    yaml = _yaml("--format yaml")

    class Dumper(yaml.SafeDumper):  # type: ignore[name-defined,misc]  # PyYAML's parameters, and no stubs
        """Without anchors: people read it."""

        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # PyYAML's parameters, and no stubs
            return True

    text: str = yaml.dump(described, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


def _yaml(what: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise SpecError(f"{what}: YAML needs PyYAML: pip install 'oncegate[openapi]'") from None
    return yaml

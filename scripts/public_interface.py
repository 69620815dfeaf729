"""Prints docs/reference.md: every name that ``import oncegate`` offers, from its own declaration and docstring."""

import ast
import enum
import inspect
import re
import sys
import textwrap
from typing import Any

from pydantic import BaseModel
from reference import table

import oncegate

HEAD = """\
# The public interface

Generated from the docstrings by `scripts/docs`: change them there. All of it comes from `import oncegate`; a change of what is
promised here is a breaking change. Beside it are [`oncegate.client`](faq.md#what-sends-keys-from-python) for httpx,
`oncegate.fastapi` ([`protect`, `document`](fastapi.md)), `oncegate.faststream` ([brokers](brokers.md)),
`oncegate.prometheus.MiddlewareMetrics` ([questions](faq.md#can-prometheus-see-what-the-middleware-does)) and
`ConsumerMetrics` ([the hook](subscriptions.md#to-be-seen)), `oncegate.testing` for [tests of your app](testing.md), and with
`oncegate.backend` for [caches of your own](caches.md). Times are in seconds, sizes in bytes.
"""
SECTIONS = {
    "For ASGI apps": (
        "IdempotencyMiddleware",
        "IdempotencySettings",
        "Route",
        "JwtSettings",
        "Caller",
        "Redact",
        "StoredResponse",
        "EXPOSED_HEADERS",
        "REQUEST_HEADERS",
    ),
    "For functions": ("idempotent", "CommandProcessor", "SyncCommandProcessor", "Codec", "derive_key"),
    "For consumers of messages": (
        "Subscription",
        "SubscriptionSettings",
        "Delivery",
        "Once",
        "Begun",
        "Execution",
        "DeliveryDecision",
        "Action",
        "Recording",
        "CommandContext",
    ),
    "Caches": ("open_cache", "RedisCache", "MemoryCache", "Cache"),
    "What is observed": ("Observe", "Observation", "Watch"),
    "Errors": (),
}
"""Which names a section has; errors are in that of their own."""
SHOWN_ELSEWHERE = {
    "IdempotencySettings": "configuration.md#idempotency",
    "Route": "configuration.md#each-routes",
    "JwtSettings": "configuration.md#jwt",
}
"""Settings that the gateway's file has, too, and where their table is."""
ALIASES = {
    "Caller": (
        "Callable[[dict[str, Any]], str | int | UUID | None]",
        "Names who sent a request, by its ASGI scope, for good. `None` and an empty text: nobody is logged in. Called in the "
        "event loop, for requests with a key; must be quick, and await nothing.",
    ),
    "Observe": ("Callable[[Observation], None]", "Called in the event loop; must be quick."),
    "Redact": (
        "Callable[[dict[str, Any], StoredResponse], StoredResponse | None]",
        "Gives what is to be kept of a response to a request, by its ASGI scope; `None`: nothing but that it was executed. "
        "Called in the event loop; must be quick, and await nothing.",
    ),
}
"""Of functions that users give: what Python has no docstring for."""


def main() -> None:
    """Write the page to standard output. Raises ``ValueError`` where a public name has no section."""
    lines = [HEAD]
    sections = SECTIONS | {"Errors": tuple(sorted(filter(_is_error, oncegate.__all__), key=_depth))}
    missing = set(oncegate.__all__).symmetric_difference(name for names in sections.values() for name in names)
    if missing:
        raise ValueError(f"scripts/public_interface.py: no section, or no public name: {', '.join(sorted(missing))}")
    for section, names in sections.items():
        lines += [f"## {section}", ""]
        for name in names:
            lines += _described(name, getattr(oncegate, name))
    sys.stdout.write("\n".join(lines).rstrip("\n") + "\n")


def _is_error(name: str) -> bool:
    each = getattr(oncegate, name)
    return isinstance(each, type) and issubclass(each, BaseException)


def _depth(name: str) -> tuple[list[str], str]:
    """A base before what is derived from it."""
    return [base.__name__ for base in reversed(getattr(oncegate, name).__mro__)], name


def _described(name: str, each: Any) -> list[str]:
    lines = [f"### `{name}`", ""]
    if isinstance(each, type):
        return [*lines, *_of_class(each)]
    if inspect.isfunction(each):
        return [*lines, *_code(_signature(name, _parsed(each))), *_text(each.__doc__)]
    if name in ALIASES:
        signature, text = ALIASES[name]
        return [*lines, *_code(signature), text, ""]
    return [*lines, *_code(", ".join(map(str, each))), ""][:-1]


def _of_class(kind: type) -> list[str]:
    lines = []
    node = _parsed(kind)
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    built = [each for each in methods if each.name == "__init__" and not _is_overload(each)]
    text = _text(kind.__doc__)
    if issubclass(kind, BaseException):
        text[0] = f"*Is a* {', '.join(f'`{base.__name__}`' for base in kind.__bases__)}. {text[0]}"
    if built:
        lines += _code(_signature(kind.__name__, built[0]))
    shown = [
        each
        for each in methods
        if not each.name.startswith("_") and not _is_overload(each) and not _is_of_caches(kind, each)
    ]
    fields, properties = _fields(kind, node), [_attribute(each) for each in shown if _is_property(each)]
    text[0], fields = _with_types(text[0], fields)
    lines += [*text, *fields]
    if fields and properties and issubclass(kind, BaseModel):  # a table, or a sentence, and then a list
        lines += [""]
    lines += [*properties, ""] if fields or properties else []
    for each in shown:
        if not _is_property(each):
            lines += [f"**`{kind.__name__}.{each.name}`**", "", *_code(_signature(each.name, each))]
            lines += _text(ast.get_docstring(each))
    return lines


def _is_of_caches(kind: type, method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a cache's method is one of `Cache`, or for parts of oncegate: users make one, and read what it has."""
    own = any(ast.unparse(decorator) in ("classmethod", "property") for decorator in method.decorator_list)
    return kind in (oncegate.RedisCache, oncegate.MemoryCache) and not own


def _fields(kind: type, node: ast.ClassDef) -> list[str]:
    if kind.__name__ in SHOWN_ELSEWHERE:
        return [f"The fields, with their defaults and meanings, are those of the gateway's file: {_linked(kind)}."]
    if issubclass(kind, BaseModel):
        return table(kind)
    lines = []
    for each, after in zip(node.body, [*node.body[1:], None], strict=True):
        told = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            told = ": " + " ".join(str(after.value.value).split())
        if isinstance(each, ast.AnnAssign) and not ast.unparse(each.target).startswith("_"):
            lines.append(f"- `{ast.unparse(each.target)}: {ast.unparse(each.annotation)}`{_plain(told)}")
        elif isinstance(each, ast.Assign) and issubclass(kind, enum.Enum):
            lines.append(f"- `{ast.unparse(each)}`{_plain(told)}")
    return lines


def _with_types(text: str, fields: list[str]) -> tuple[str, list[str]]:
    """A docstring whose list of attributes has their types, and the ``fields`` that it doesn't name."""
    left = {line.removeprefix("- `").partition(":")[0]: line for line in fields if ": " in line}

    def typed(found: re.Match[str]) -> str:
        names = re.findall(r"`(\w+)`", found[1])
        if not left.keys() >= set(names):
            return found[0]
        return "- " + ", ".join(left.pop(name).removeprefix("- ") for name in names) + ":"

    written = re.sub(r"^- (`\w+`(?:, `\w+`)*):", typed, text, flags=re.MULTILINE)
    return written, fields if written == text else [*left.values()]


def _attribute(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """A property, as a line beside the fields."""
    said = " ".join((ast.get_docstring(node) or "").split())
    return f"- `{_signature(node.name, node)}`{_plain(': ' + said)}"


def _linked(kind: type) -> str:
    return f"[configuration]({SHOWN_ELSEWHERE[kind.__name__]})"


def _parsed(each: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]


def _is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list)


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(decorator) == "property" for decorator in node.decorator_list)


def _signature(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """As it is called: without ``self``, a parameter a line where there are many."""
    prefix = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    given = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    if given and given[0] in ("self", "cls"):
        del node.args.args[0]
    if _is_property(node):
        return f"{name}: {ast.unparse(node.returns) if node.returns else ''}"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    line = f"{prefix}{name}({ast.unparse(node.args)}){returns}".replace("'", '"')
    line = re.sub(r'(?<=[\w\])])=(?=[\w"(\[-])', " = ", line)
    return line if len(line) <= 110 else _broken(line)


def _broken(line: str) -> str:
    """``line`` with a line for each parameter; commas within brackets don't part any."""
    start = line.index("(") + 1
    depth, made = 1, line[:start] + "\n    "
    for at, character in enumerate(line[start:], start):
        depth += (character in "([{") - (character in ")]}")
        if not depth:
            return f"{made},\n{line[at:]}"
        made += ",\n   " if character == "," and depth == 1 else character
    return line


def _code(text: str) -> list[str]:
    return ["```text", text, "```", ""]


def _text(docstring: str | None) -> list[str]:
    return [_plain(inspect.cleandoc(docstring or "")), ""]


def _plain(text: str) -> str:
    """A docstring's marks as Markdown's, and modules' names left out."""
    return re.sub(r"`oncegate\.[\w.]+\.(\w+)`", r"`\1`", text.replace("``", "`"))


if __name__ == "__main__":
    main()

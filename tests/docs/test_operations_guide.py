"""The operations guide tells of every metric that the gateway or a worker has and, with the brokers' page, of every warning."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from oncegate.app.factory import create_gateway
from oncegate.app.settings.admin_tokens import AdminToken
from oncegate.app.settings.certificates import ListenerTls
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.prometheus import ConsumerMetrics, ProjectionMetrics, RelayMetrics
from testing.asgi_client import Client
from testing.certificates import Authority

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/operations.md").read_text("utf-8")


async def test_every_metric_is_told_of_and_no_other(tmp_path: Path) -> None:
    cert, key = Authority(tmp_path).issue()
    settings = GatewaySettings(upstream="http://127.0.0.1:1", tls_cert=str(cert), tls_key=str(key))
    gateway = create_gateway(settings, tls=ListenerTls.of(settings))
    client = await Client("GET", b"/_oncegate/metrics").call(gateway)
    families = list(text_string_to_metric_families(client.body.decode()))
    registry = CollectorRegistry()
    ConsumerMetrics(registry=registry)  # a worker has these, and build_info
    RelayMetrics(registry=registry)
    ProjectionMetrics(registry=registry)
    families += registry.collect()
    exposed = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    assert len(exposed) > 10
    assert set(re.findall(r"oncegate_\w+", GUIDE)) == exposed


FOLDERS = [ROOT / folder for folder in ("app", "middleware", "cache", "src/oncegate/sql", "src/oncegate/faststream")]
WITHOUT_WORDS = {
    *("%s", "%s: %s", "%s; %s", "%s: %s: %s", "record %s: %s"),
    *("record %s: attempt %d failed: %s", "queue %s %s"),
}
"""What has no words of its own: an error's text, or advice, which says itself what to do."""


def parsed() -> list[ast.Module]:
    return [ast.parse(path.read_text("utf-8")) for folder in FOLDERS for path in sorted(folder.rglob("*.py"))]


def constants(modules: list[ast.Module]) -> dict[str, list[ast.expr]]:
    """What the modules' global names stand for; one that several modules have, for all of these."""
    found: dict[str, list[ast.expr]] = {}
    for statement in (statement for module in modules for statement in module.body):
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            for name in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
                found.setdefault(ast.unparse(name), []).append(statement.value)
    return found


def messages(node: ast.expr, named: dict[str, list[ast.expr]]) -> Iterator[str]:
    """The texts that an expression can be."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp(body=body, orelse=other):
            yield from [*messages(body, named), *messages(other, named)]
        case ast.Name(id=name):
            for value in named[name]:
                yield from messages(value, named)


def warnings() -> Iterator[str]:
    """What can be logged as a warning or worse: the constant part of each message, without the record's id."""
    modules = parsed()
    named = constants(modules)
    for node in (node for module in modules for node in ast.walk(module)):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="log" | "logger"), attr="warning" | "error" | "exception"),
                args=[message, *_],
            ):
                found = list(messages(message, named))
                assert found, ast.unparse(node)
                yield from found


def parts(message: str) -> list[str]:
    """The words between what differs from line to line; the last, loosest ones go."""
    return [part.strip(" :,;()") for part in re.split(r"%[sd]|record %s|worker|attempt ", message)]


def test_every_warning_is_told_of() -> None:
    guide = GUIDE + (ROOT / "docs/brokers.md").read_text("utf-8")
    found = set(warnings())
    assert len(found) > 80
    assert found > WITHOUT_WORDS
    phrases = re.findall(r"`([^`|]{8,})`", guide)
    for message in found - WITHOUT_WORDS:
        words = [part for part in parts(message) if len(part) >= 8]
        assert any(word in guide for word in words) or any(phrase in message for phrase in phrases), message


def test_the_token_that_is_shown_is_the_one_whose_digest_is_shown() -> None:
    (token,) = re.findall(r"^oncegate-\S+$", GUIDE, re.M)
    assert set(re.findall(r"alice:read:\w+", GUIDE)) == {AdminToken.of("alice", token, writes=False).setting()}

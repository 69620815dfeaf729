"""The operations guide tells of every metric that the gateway or a worker has and of every warning that it can log."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from oncegate.app.factory import create_gateway
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.prometheus import ConsumerMetrics, RelayMetrics
from testing.asgi_client import Client

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/operations.md").read_text("utf-8")


async def test_every_metric_is_told_of_and_no_other() -> None:
    gateway = create_gateway(GatewaySettings(upstream="http://127.0.0.1:1"))
    client = await Client("GET", b"/_oncegate/metrics").call(gateway)
    families = list(text_string_to_metric_families(client.body.decode()))
    registry = CollectorRegistry()
    ConsumerMetrics(registry=registry)  # a worker has these, and build_info
    RelayMetrics(registry=registry)
    families += registry.collect()
    told = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    assert len(told) > 10
    assert set(re.findall(r"oncegate_\w+", GUIDE)) == told


def warnings() -> Iterator[str]:
    """What can be logged as a warning or worse: the constant part of each message, without the record's id."""
    for path in sorted(path for folder in ("app", "middleware", "cache") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            message = node.args[0]
            logs = isinstance(node.func.value, ast.Name) and node.func.value.id == "log"
            if logs and node.func.attr in ("warning", "error", "exception") and isinstance(message, ast.Constant):
                yield str(message.value)


def parts(message: str) -> list[str]:
    """The words between what differs from line to line; the last, loosest ones go."""
    return [part.strip(" :,;()") for part in re.split(r"%[sd]|record %s|worker|attempt ", message)]


def test_every_warning_is_told_of() -> None:
    found = set(warnings())
    assert len(found) > 50
    phrases = re.findall(r"`([^`|]{8,})`", GUIDE)
    for message in found:
        words = [part for part in parts(message) if len(part) > 8]
        # Without words of its own: an error's text, or advice, which says itself what to do.
        named = any(word in GUIDE for word in words) or any(phrase in message for phrase in phrases)
        assert named or not words, message

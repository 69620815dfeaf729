"""Prints what Helm makes of docs/deploy/chart, checked against Kubernetes' schemas.

    $(scripts/helm) scripts/render_chart.py NAME NAMESPACE VALUES.yaml

Helm's own library renders and lints it, so that neither helm nor a cluster is needed. What is printed is for kubectl: the
labels by which Helm knows what is its own are left out. Kinds that Kubernetes itself doesn't know, those of Prometheus's
operator, have no schema here. Exit code 1, with lines on standard error: the chart, or what came of it, is wrong.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import helm_python
import kubernetes_validate
import yaml

CHART = Path(__file__).resolve().parent.parent / "docs/deploy/chart"
VERSIONS = ("1.29", "1.33", "1.37")
"""Of Kubernetes: the oldest one that sidecars want, one between, the newest whose schemas are here."""


def render(name: str, namespace: str, values: dict[str, object]) -> str:
    """The manifests, in the order of their files' names. Raises ``helm_python.HelmError``."""
    with helm_python.Chart.load(str(CHART)) as chart:
        chart.validate_schema(values)
        files = chart.render(values, name=name, namespace=namespace)
    rendered = [text.strip() for file, text in sorted(files.items()) if file.endswith(".yaml") and text.strip()]
    return "\n---\n".join(rendered) + "\n"


def faults(manifests: str, values: dict[str, object]) -> Iterator[str]:
    """What Helm's lint finds, and what Kubernetes would refuse."""
    for message in helm_python.lint(str(CHART), values, strict=True)["messages"]:
        if message["severity"] not in ("info", "INFO", 1):
            yield f"lint: {message}"
    for document in yaml.safe_load_all(manifests):
        if document["apiVersion"].startswith("monitoring.coreos.com/"):
            continue
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"Kubernetes {version}: {document['kind']} {document['metadata']['name']}: {error.message}"


def main(name: str, namespace: str, file: str) -> int:
    """See the module."""
    values = yaml.safe_load(Path(file).read_text("utf-8")) or {}
    try:
        manifests = render(name, namespace, values)
    except helm_python.HelmError as error:
        print(f"scripts/render_chart.py: {error}", file=sys.stderr)
        return 1
    print(re.sub(r" +(app\.kubernetes\.io/managed-by|helm\.sh/chart): .*\n| +$", "", manifests, flags=re.M), end="")
    found = list(faults(manifests, values))
    for line in found:
        print(f"scripts/render_chart.py: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

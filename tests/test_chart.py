"""The Helm chart, rendered by Helm's own library: what comes of it fits together, and is what the code takes.

Nobody has installed it: no cluster is at hand.
"""

import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from oncegate.app.settings.advice import settings_advice
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.sources import load
from testing.fetching import fetched
from testing.served import served

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "docs" / "deploy"
REDIS_URL = "redis://:secret@redis:6379/0"
UPSTREAM = {"upstream": "http://payments:9000"}


class Rendered(NamedTuple):
    """What scripts/render_chart.py printed, and its exit code."""

    code: int
    text: str
    faults: str

    @property
    def manifests(self) -> list[dict[str, Any]]:
        assert self.code == 0, self.faults
        return list(yaml.safe_load_all(self.text))

    def only(self, kind: str) -> dict[str, Any]:
        (found,) = [each for each in self.manifests if each["kind"] == kind]
        return found


@pytest.fixture
def values(tmp_path: Path) -> Path:
    return tmp_path / "values.yaml"


def render(values: Path, given: dict[str, Any] | None = None) -> Rendered:
    if given is not None:
        values.write_text(yaml.safe_dump(given), "utf-8")
    command = [fetched("helm"), str(ROOT / "scripts/render_chart.py"), "payments-gateway", "payments", str(values)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return Rendered(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def standalone() -> Rendered:
    return render(DEPLOY / "payments-values.yaml")


def test_the_file_without_helm_is_what_helm_makes_of_the_chart(standalone: Rendered) -> None:
    text = (DEPLOY / "standalone.yaml").read_text("utf-8")
    assert standalone.code == 0, standalone.faults
    assert "".join(line for line in text.splitlines(keepends=True)[2:]) == standalone.text, "scripts/docs writes it"


def settings_of(rendered: Rendered, folder: Path, monkeypatch: pytest.MonkeyPatch) -> GatewaySettings:
    """The settings in its ConfigMap, by the arguments and variables of its container."""
    deployment = rendered.only("Deployment")["spec"]["template"]["spec"]
    (container,) = deployment["containers"]
    ((name, text),) = rendered.only("ConfigMap")["data"].items()
    volumes = {each["name"]: each for each in deployment["volumes"]}
    assert {each["name"] for each in container["volumeMounts"]} == volumes.keys()
    (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] != "/tmp"]
    volume = volumes[mount["name"]]
    assert container["args"] == ["serve", "--config", f"{mount['mountPath']}/{name}"]
    assert (volume["name"], volume["configMap"]["name"]) == (
        mount["name"],
        rendered.only("ConfigMap")["metadata"]["name"],
    )
    for each in container["env"]:
        monkeypatch.setenv(each["name"], REDIS_URL)
    (folder / name).write_text(text, "utf-8")
    return load({}, str(folder / name))


def test_its_settings_are_understood(standalone: Rendered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(standalone, tmp_path, monkeypatch)
    assert not settings_advice(settings)
    assert (settings.upstream, settings.cache, settings.namespace) == ("http://payments:9000", REDIS_URL, "payments")
    assert [route.path for route in settings.routes] == ["/payments"]
    pod = standalone.only("Deployment")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > settings.drain_delay + settings.shutdown_timeout
    ports = {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}
    assert ports == {"http": settings.port, "ops": settings.ops_port}


def test_its_own_values_are_settings_too(values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(render(values, UPSTREAM), tmp_path, monkeypatch)
    assert (settings.namespace, settings.idempotency.scope) == ("payments-gateway", ("header:Authorization",))


def test_whom_it_selects_is_who_is_meant(standalone: Rendered) -> None:
    pod = standalone.only("Deployment")["spec"]["template"]["metadata"]["labels"]
    ports = {
        port["name"] for port in standalone.only("Deployment")["spec"]["template"]["spec"]["containers"][0]["ports"]
    }
    services = [each for each in standalone.manifests if each["kind"] == "Service"]
    budget = standalone.only("PodDisruptionBudget")["spec"]
    selectors = [
        standalone.only("Deployment")["spec"]["selector"]["matchLabels"],
        budget["selector"]["matchLabels"],
        *(each["spec"]["selector"] for each in services),
    ]
    assert all(selector.items() <= pod.items() for selector in selectors)
    assert budget["maxUnavailable"] == 1
    assert {port["targetPort"] for each in services for port in each["spec"]["ports"]} == ports
    # The operators' port is none of the Service that callers are given.
    assert [[port["name"] for port in each["spec"]["ports"]] for each in services] == [["http"], ["ops"]]
    monitor = standalone.only("ServiceMonitor")["spec"]
    (found,) = [
        each for each in services if monitor["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
    ]
    assert [endpoint["port"] for endpoint in monitor["endpoints"]] == [port["name"] for port in found["spec"]["ports"]]


async def test_what_is_asked_of_it_is_served(standalone: Rendered) -> None:
    (container,) = standalone.only("Deployment")["spec"]["template"]["spec"]["containers"]
    paths = {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    paths |= {endpoint["path"] for endpoint in standalone.only("ServiceMonitor")["spec"]["endpoints"]}
    async with served("http://127.0.0.1:9") as (client, _):
        answers = {path: (await client.get(path)).status_code for path in paths}
    served_paths = {"/_oncegate/healthz": 200, "/_oncegate/readyz": 503, "/_oncegate/metrics": 200}
    assert answers == served_paths  # no upstream there: not ready


def test_the_pods_may_do_nothing_but_serve(standalone: Rendered) -> None:
    pod = standalone.only("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "cpu" not in container["resources"]["limits"]


def test_the_alerts_come_with_links_to_one_s_own_pages(values: Path, tmp_path: Path) -> None:
    alerts = {"enabled": True, "labels": {"release": "prometheus"}, "docsUrl": "https://wiki.example/oncegate/"}
    rule = render(values, UPSTREAM | {"alerts": alerts}).only("PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]), "utf-8")
    checked = subprocess.run([f"{fetched('prometheus')}/promtool", "check", "rules", tmp_path / "rules.yaml"])
    assert checked.returncode == 0
    shipped = yaml.safe_load((DEPLOY / "alerts.yaml").read_text("utf-8"))["groups"]
    links = [each["annotations"].pop("runbook_url") for group in rule["spec"]["groups"] for each in group["rules"]]
    assert {link.partition("#")[0] for link in links} == {"https://wiki.example/oncegate/alerts.md"}
    for each in (each for group in shipped for each in group["rules"]):
        del each["annotations"]["runbook_url"]
    assert rule["spec"]["groups"] == shipped


def test_other_settings_are_other_pods(values: Path, standalone: Rendered) -> None:
    def pods(rendered: Rendered) -> Any:
        return rendered.only("Deployment")["spec"]["template"]

    given = yaml.safe_load((DEPLOY / "payments-values.yaml").read_text("utf-8"))
    assert pods(render(values, given)) == pods(standalone)
    assert pods(render(values, given | {"config": given["config"] + "ttl = 60\n"})) != pods(standalone)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({}, "upstream is missing: the URL of the service, such as --set upstream=http://payments:9000"),
        (UPSTREAM | {"replica": 3}, "additional properties 'replica' not allowed"),
        (UPSTREAM | {"replicas": 0}, "/replicas"),
        (UPSTREAM | {"alerts": {"docsUrl": "docs"}}, "/alerts/docsUrl"),
        (UPSTREAM | {"resources": {"limit": {}}}, "Additional properties are not allowed ('limit' was unexpected)"),
        (UPSTREAM | {"env": [{"name": "X", "value": 1}]}, "Kubernetes 1.29: Deployment payments-gateway: 1 is not of"),
    ],
)
def test_values_that_can_t_be_meant_are_refused(values: Path, given: dict[str, Any], line: str) -> None:
    rendered = render(values, given)
    assert rendered.code == 1
    assert line in rendered.faults

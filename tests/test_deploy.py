"""The deployment examples: no engine is at hand to run them, so each path, setting and command in them is held to the code."""

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from oncegate.app.cli.main import main
from oncegate.app.gateway_server import BACKLOG
from oncegate.app.serve import USAGE
from oncegate.app.settings.advice import settings_advice
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.sources import load
from oncegate.app.supervisor import HTTP
from testing.served import served

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "docs" / "deploy"
REDIS_URL = "redis://:secret@redis:6379/0"


@pytest.fixture
def dockerfile() -> list[tuple[str, str]]:
    """Its instructions with their arguments."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text("utf-8"))
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


@pytest.fixture
def compose() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    return services


@pytest.fixture
def kubernetes() -> dict[str, Any]:
    """Its objects by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8"))}


def sidecar(kubernetes: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = kubernetes["Deployment"]["spec"]["template"]["spec"]["initContainers"][0]
    return container


def test_image_is_built_from_what_is_there(dockerfile: list[tuple[str, str]]) -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")}
    copied = {
        source
        for word, rest in dockerfile
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert copied == let_in
    assert all((ROOT / source).exists() for source in copied)


def test_image_holds_every_folder_that_the_wheel_is_made_of(dockerfile: list[tuple[str, str]]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    needed = {folder.split("/")[0] for folder in project["tool"]["setuptools"]["package-dir"].values()}
    needed |= {project["project"]["readme"], *project["project"]["license-files"]}
    copied = {source for word, rest in dockerfile if word == "COPY" for source in rest.split()[:-1]}
    assert needed <= copied


def test_image_does_not_run_as_root(dockerfile: list[tuple[str, str]]) -> None:
    users = [rest for word, rest in dockerfile if word == "USER"]
    assert users == ["oncegate"]
    assert any(word == "RUN" and rest.startswith("useradd") and rest.endswith(" oncegate") for word, rest in dockerfile)


def test_image_starts_a_command_that_exists(dockerfile: list[tuple[str, str]]) -> None:
    words = dict(dockerfile)
    assert json.loads(words["ENTRYPOINT"]) == ["oncegate"]
    assert json.loads(words["CMD"])[0] in main.commands


def test_image_s_environment_is_understood(dockerfile: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = [rest for word, rest in dockerfile if word == "ENV"]
    for name, value in (each.split("=", 1) for each in shlex.split(line)):
        if name.startswith("ONCEGATE_"):
            monkeypatch.setenv(name, value)
    settings = load({"upstream": "http://payments:9000"})
    assert (settings.host, settings.port) == ("0.0.0.0", 8080)


async def test_image_s_health_check_passes_on_a_running_gateway(dockerfile: list[tuple[str, str]]) -> None:
    (line,) = [rest for word, rest in dockerfile if word == "HEALTHCHECK"]
    code = json.loads(line.partition("CMD")[2])[2]
    async with served("http://127.0.0.1:9") as (client, _):
        assert "127.0.0.1:8080" in code
        here = code.replace("127.0.0.1:8080", f"127.0.0.1:{client.base_url.port}")
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", here)
        assert await process.wait() == 0
    # ... and fails without one: the port that it asks is not served any more
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", here, stderr=subprocess.DEVNULL)
    assert await process.wait() != 0


def test_compose_settings_are_understood(compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in compose["oncegate"]["environment"].items():
        monkeypatch.setenv(name, value)
    settings = load({})
    assert not settings_advice(settings)
    hosts = {"payments": settings.upstream, "redis": settings.cache}
    assert all(f"//{host}:" in url and host in compose for host, url in hosts.items())
    assert seconds(compose["oncegate"]["stop_grace_period"]) > stop_seconds(settings)


def test_compose_s_redis_keeps_its_promises(compose: dict[str, Any]) -> None:
    command = compose["redis"]["command"]
    assert command[command.index("--appendonly") + 1] == "yes"
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"


def test_compose_s_payments_service_is_code_that_runs(compose: dict[str, Any]) -> None:
    (code,) = compose["payments"]["command"]
    tried = code.replace("uvicorn.run(", "uvicorn.Config(")
    assert tried != code
    assert compose["payments"]["entrypoint"] == ["python", "-c"]
    subprocess.run([sys.executable, "-c", tried], check=True, stdout=subprocess.DEVNULL)


def test_kubernetes_settings_are_understood(
    kubernetes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = sidecar(kubernetes)
    ((name, text),) = kubernetes["ConfigMap"]["data"].items()
    (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] != "/tmp"]
    assert container["args"] == ["serve", "--config", f"{mount['mountPath']}/{name}"]
    monkeypatch.setenv(container["env"][0]["name"], REDIS_URL)
    (tmp_path / name).write_text(text, "utf-8")
    settings = load({}, str(tmp_path / name))
    assert not settings_advice(settings)
    assert settings.cache == REDIS_URL
    assert container["ports"][0]["containerPort"] == settings.port
    assert kubernetes["Service"]["spec"]["ports"][0]["targetPort"] == settings.port
    pod = kubernetes["Deployment"]["spec"]["template"]["spec"]
    pause = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > pause + stop_seconds(settings)


def test_kubernetes_mounts_volumes_that_there_are(kubernetes: dict[str, Any]) -> None:
    volumes = {each["name"] for each in kubernetes["Deployment"]["spec"]["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in sidecar(kubernetes)["volumeMounts"]} == volumes


def test_kubernetes_sidecar_is_a_native_one(kubernetes: dict[str, Any]) -> None:
    container = sidecar(kubernetes)
    assert container["restartPolicy"] == "Always"
    assert container["securityContext"]["runAsNonRoot"]
    assert "limits" in container["resources"]


async def test_kubernetes_probes_ask_for_what_is_served(kubernetes: dict[str, Any]) -> None:
    container = sidecar(kubernetes)
    paths = {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    async with served("http://127.0.0.1:9") as (client, _):
        answers = {path: (await client.get(path)).status_code for path in paths}
    assert answers == {"/_oncegate/healthz": 200, "/_oncegate/readyz": 503}  # no upstream there: not ready


@pytest.mark.parametrize("service", ["oncegate", "oncegate-worker"])
def test_systemd_unit_starts_what_exists_and_waits_for_its_end(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = dict(
        line.split("=", 1)
        for line in (DEPLOY / f"{service}.service").read_text("utf-8").splitlines()
        if "=" in line and not line.startswith("#")
    )
    assert (unit["Restart"], unit["StartLimitIntervalSec"]) == ("always", "0")
    assert int(unit["RestartPreventExitStatus"]) == USAGE
    program, command, option, file = unit["ExecStart"].split()
    assert Path(program).name == "oncegate"
    assert command in main.commands
    shown = CliRunner().invoke(main, [command, "--help"]).output
    assert option in shown
    assert Path(file).name == "oncegate.toml"
    monkeypatch.setenv("REDIS_URL", REDIS_URL)
    settings = load({}, str(DEPLOY / "oncegate.toml"))
    assert not settings_advice(settings)
    assert settings.worker.forward == settings.upstream
    assert int(unit["TimeoutStopSec"]) > stop_seconds(settings)


def test_systemd_s_socket_is_that_of_the_service() -> None:
    lines = (DEPLOY / "oncegate.socket").read_text("utf-8").splitlines()
    unit = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    settings = GatewaySettings(upstream="http://127.0.0.1:9000")
    assert unit["ListenStream"] == f"{settings.host}:{settings.port}"
    assert unit["FileDescriptorName"] == HTTP
    assert int(unit["Backlog"]) == BACKLOG
    assert unit["Service"] == "oncegate.service"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not there")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    for unit in ("oncegate.service", "oncegate-worker.service", "oncegate.socket"):
        text = (DEPLOY / unit).read_text("utf-8")
        (tmp_path / unit).write_text(text.replace("/opt/oncegate/bin/oncegate", sys.executable), "utf-8")
    verify = ["systemd-analyze", "verify", *map(str, sorted(tmp_path.iterdir()))]
    done = subprocess.run(verify, capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def stop_seconds(settings: GatewaySettings) -> float:
    return settings.drain_delay + settings.shutdown_timeout


def seconds(text: str) -> int:
    assert text.endswith("s")
    return int(text[:-1])

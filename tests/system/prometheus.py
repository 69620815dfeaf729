"""A real Prometheus that looks at one gateway or worker, with the shipped rules: what they find, which of them are active."""

import socket
import time
from pathlib import Path
from typing import Any

import httpx
import yaml

from testing.servers import FetchedServer
from testing.waiting import wait_until

RULES = Path(__file__).parent.parent.parent / "docs/deploy/alerts.yaml"
_GROUPS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
ALERTS: dict[str, dict[str, Any]] = {rule["alert"]: rule for group in _GROUPS for rule in group["rules"]}
"""The shipped alerts by name."""
OF_PROCESSES, OF_ROLLOUTS, OF_CERTIFICATES, OF_CONSUMERS, OF_DATABASES = (
    {rule["alert"] for group in _GROUPS for rule in group["rules"] if group["name"] == f"oncegate-{name}"}
    for name in ("processes", "rollout", "certificates", "consumers", "databases")
)
"""Those of all that Prometheus looks at, of what is observed, of gateways that speak TLS, of workers and consumers in apps, of
what waits in a database."""
OF_GATEWAYS = set(ALERTS) - OF_PROCESSES - OF_ROLLOUTS - OF_CERTIFICATES - OF_CONSUMERS - OF_DATABASES
INTERVAL = "250ms"
_JOB = "payments"


class Prometheus(FetchedServer):
    """Scrapes ``path`` of the gateway or worker at ``address``, ``host:port``, and evaluates the shipped rules, several times
    a second. With ``ca``, the file of an authority's certificate, it does so by TLS.
    """

    binary = "prometheus"
    script = "prometheus"

    def __init__(self, address: str, path: str = "/_oncegate/metrics", *, ca: Path | None = None) -> None:
        super().__init__()
        self._scheme = {} if ca is None else {"scheme": "https", "tls_config": {"ca_file": str(ca)}}
        self._path = path
        self._address = address

    def _command(self) -> list[str]:
        """The configuration: what is looked at, and the shipped rules."""
        configuration = {
            "global": {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {
                    "job_name": _JOB,
                    "metrics_path": self._path,
                    "static_configs": [{"targets": [self._address]}],
                    **self._scheme,
                }
            ],
        }
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(configuration), "utf-8")
        return [
            self._binary,
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]

    def greeting(self, connection: socket.socket) -> bool:
        """It says that it is ready."""
        connection.sendall(b"GET /-/ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        return connection.recv(12).endswith(b" 200")

    def _get(self, path: str, **query: str) -> Any:
        # Asked dozens of times a second: without `verify` no authorities are read each time.
        answer = httpx.get(f"http://127.0.0.1:{self.port}/api/v1/{path}", params=query, timeout=60, verify=False)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression finds now."""
        found: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return found

    def scrapes(self) -> int:
        """How often it has answered since it was looked at."""
        found = self.query(f'sum(count_over_time((up{{job="{_JOB}"}} == 1)[1h:{INTERVAL}]))')
        return int(found[0]["value"][1]) if found else 0

    def active(self) -> set[str]:
        """The alerts that have found something, whether for long enough or not."""
        return {alert["labels"]["alertname"] for alert in self._get("alerts")["alerts"]}

    def found(self) -> set[str]:
        """The alerts whose expressions find something now."""
        return {name for name, rule in ALERTS.items() if self.query(rule["expr"])}

    def become_active(self, expected: set[str], *names: str) -> None:
        """Wait until ``names``, which are added to what is ``expected``, are active, and no others are."""
        expected.update(names)
        wait_until(lambda: self.active() >= expected, f"{names} are active")
        seen: list[set[str]] = []

        def as_expected() -> bool:
            """A process that is looked at and stands still is not there, for that moment."""
            assert self.evaluated()
            seen[:] = self.active(), self.found()
            return seen == [expected, expected]

        try:
            wait_until(as_expected, "these alerts and no others")
        except AssertionError:
            raise AssertionError(f"active, found: {seen}; expected: {expected}") from None

    def evaluated(self) -> bool:
        """Whether all rules have been evaluated, without an error, after the moment of the call."""
        now = time.time()
        until = now + 60
        while time.time() < until:
            rules = [rule for group in self._get("rules")["groups"] for rule in group["rules"]]
            assert [rule["name"] for rule in rules if rule["health"] == "err"] == []
            if len(rules) == len(ALERTS) and all(_instant(rule["lastEvaluation"]) > now for rule in rules):
                return True
            time.sleep(0.05)
        return False


def _instant(text: str) -> float:
    from datetime import datetime

    whole, _, rest = text.partition(".")
    zone = rest.lstrip("0123456789") if rest else ""
    digits = rest[: len(rest) - len(zone)]
    return datetime.fromisoformat(f"{whole}.{digits[:6]:0<6}{zone.replace('Z', '+00:00')}").timestamp()

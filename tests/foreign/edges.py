"""nginx, HAProxy and Caddy as docs/behind-proxies.md configures them, in front of gateways."""

import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from testing.pages import BLOCK
from testing.servers import Server
from tests.foreign.conftest import ROOT, fetched_or_skipped

PAGE = ROOT / "docs" / "behind-proxies.md"
LISTENS, FIRST, SECOND = ":8000", ":8081", ":8082"
"""The ports on the page."""


def block(kind: str) -> str:
    """The one block of that kind on the page."""
    (found,) = [block for name, block in BLOCK.findall(PAGE.read_text("utf-8")) if name == kind]
    return str(found)


class Edge(Server):
    """One of them, with the page's block; ``changes`` replace parts of it, each of which must be there."""

    kind: str
    needs: str
    """The script that fetches it."""

    def __init__(self, gateways: Sequence[int], changes: dict[str, str] | None = None) -> None:
        self._binary = fetched_or_skipped(self.needs)
        super().__init__(self.kind)
        text = block(self.kind)
        ports = {LISTENS: f":{self.port}", FIRST: f":{gateways[0]}", SECOND: f":{gateways[1]}"}
        for old, new in {**ports, **(changes or {})}.items():
            assert old in text, old
            text = text.replace(old, new)
        self._file = self._folder / "configuration"
        self._file.write_text(self._whole(text))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _whole(self, text: str) -> str:
        """The page's block with what a file needs around it."""
        return text

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2):
            return True
        return False


class Nginx(Edge):
    kind = needs = "nginx"

    def _whole(self, text: str) -> str:
        folder = self._folder
        temporary = " ".join(
            f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        return (
            f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors;\n"
            f"events {{ }}\nhttp {{ access_log off; {temporary}\n{text}}}\n"
        )

    def _command(self) -> list[str | Path]:
        return [Path(self._binary) / "bin" / "nginx", "-c", self._file]


class HAProxy(Edge):
    kind = needs = "haproxy"

    def _command(self) -> list[str | Path]:
        return [self._binary, "-db", "-f", self._file]


class Caddy(Edge):
    kind, needs = "caddyfile", "caddy"

    def _whole(self, text: str) -> str:
        storage = f"storage file_system {self._folder}/storage"
        return f"{{\nadmin off\nauto_https off\n{storage}\n}}\n{text}"

    def _command(self) -> list[str | Path]:
        return ["env", f"HOME={self._folder}", self._binary, "run", "--config", self._file, "--adapter", "caddyfile"]


EDGES: dict[str, type[Edge]] = {"nginx": Nginx, "haproxy": HAProxy, "caddy": Caddy}

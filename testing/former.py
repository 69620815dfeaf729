"""Earlier versions of oncegate, out of git's history: what stands beside this one while a service is upgraded, or rolled back.

`python -m testing.former` has each of them write records and commands, and keeps their bytes in tests/data/former.json.
"""

import base64
import json
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from testing.gateway import DEADLINE, Gateway
from testing.ledger import Ledger, Reply
from testing.servers import RedisServer
from testing.template import ROOT
from testing.waiting import wait_until

BYTES = ROOT / "tests/data/former.json"
NAMESPACE = "former"
BODY = b"body-of-a-payment"
CALLER = {"authorization": "Bearer secret-of-alice"}


class Former(NamedTuple):
    """A version: its commit, and by which setting its routes take no request without a key."""

    commit: str
    needs_key: dict[str, Any]


FIRST = Former("a5f9de66272bb457d2b53747e32d2be4995274d6", {"require_key": True})
"""The first version whose records are believed: it seals them."""
LAST = Former("d527235cbd4352b196eb1662443a2400526d1c92", {"on_missing_key": "reject"})
"""The last version. A release puts its own commit here, and runs this module."""
THIS = Former("", {"on_missing_key": "reject"})
"""The version of this checkout."""


class NoHistoryError(RuntimeError):
    """Git's history is not here: a shallow clone, or sources without it."""


def site(former: Former) -> Path | None:
    """Its import path, for PYTHONPATH; ``None`` for this version. Raises `NoHistoryError`."""
    if former is THIS:
        return None
    tree = ROOT / ".cache/former" / former.commit
    if not tree.exists():
        _extract(former.commit, tree)
    return tree / "src"


def _extract(commit: str, tree: Path) -> None:
    if _git("cat-file", "-e", f"{commit}^{{commit}}").returncode:
        shallow = _git("rev-parse", "--is-shallow-repository").stdout.strip()
        if shallow != b"false":
            raise NoHistoryError(f"commit {commit} is not here: git fetch --unshallow")
        raise AssertionError(f"commit {commit} is in no history: testing/former.py names a version that is gone")
    tree.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tree.parent) as folder:
        packed = _git("archive", commit, "src", "app", "middleware", "cache")
        assert packed.returncode == 0, packed.stderr
        new = Path(folder) / "tree"
        new.mkdir()
        subprocess.run(["tar", "-x", "-C", new], input=packed.stdout, check=True)
        if not tree.exists():  # by another process, meanwhile
            new.rename(tree)


def _git(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True)


def routes(former: Former) -> list[dict[str, Any]]:
    """The rules of both versions, in the words of this one."""
    return [{"path": "/reports", "mode": "async", **former.needs_key}, {"path": "/kept/*", "on_error": "replay"}]


def post(gateway: Gateway, key: str, path: str) -> httpx.Response:
    headers = {"idempotency-key": key, **CALLER}
    return httpx.post(gateway.url + path, content=BODY, headers=headers, timeout=DEADLINE, verify=False)


KINDS = {
    "succeeded": "/payments",
    "failed": "/kept/1",
    "unknown": "/payments",
    "submitted": "/reports",
    "killed": "/payments",
}
"""What became of a request, which is its key, too, and where it went. The last one's gateway was killed meanwhile."""
RULES = {"ttl": 86_400, "lease": 30}


def write(former: Former, folder: Path) -> dict[str, Any]:
    """What a gateway of that version leaves in Redis, key by key, and what clients got for each kind but the last."""
    with RedisServer() as server, Ledger() as ledger, ledger.gate() as gate, ThreadPoolExecutor() as threads:
        ledger.answer("failed", Reply(422, (("content-type", "text/plain"),), b"no \xe2\x82\xac"))
        ledger.answer("unknown", Reply(cut="before-head"))
        ledger.answer("killed", Reply(gate=gate))
        where: dict[str, Any] = {"namespace": NAMESPACE, "routes": routes(former), "idempotency": RULES}
        gateway = Gateway(folder / "log", ledger.url, server.url, site=site(former), **where)
        try:
            gateway.ready()
            answers = {kind: post(gateway, kind, path) for kind, path in KINDS.items() if kind != "killed"}
            lost = threads.submit(post, gateway, "killed", KINDS["killed"])
            wait_until(lambda: ledger.arrivals("killed"), "the request arrives")
            gateway.kill()
            assert isinstance(lost.exception(DEADLINE), httpx.TransportError)
        finally:
            gateway.end()
        got = {kind: {"status": answer.status_code, "body": answer.text} for kind, answer in answers.items()}
        return {"commit": former.commit, "answers": got, "keys": _kept(server)}


def _kept(server: RedisServer) -> dict[str, Any]:
    """The keys of a Redis: bytes of a string, entries of a stream."""
    found: dict[str, Any] = {}
    for key in sorted(server.command("KEYS", "*")):
        if server.command("TYPE", key) == b"stream":
            entries = server.command("XRANGE", key, "-", "+")
            found[key.decode()] = [
                [entry.decode(), [_text(part) for part in _flat(fields)]] for entry, fields in entries
            ]
        else:
            found[key.decode()] = _text(server.command("GET", key))
    return found


def _flat(fields: Any) -> list[bytes]:
    return [part for pair in fields.items() for part in pair] if isinstance(fields, dict) else list(fields)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def put_back(written: dict[str, Any], server: RedisServer) -> None:
    """Put into a Redis what `write` has found in one. The leases are over, the records are not."""
    for key, kept in written["keys"].items():
        if isinstance(kept, list):
            for entry, parts in kept:
                server.command("XADD", key, entry, *map(base64.b64decode, parts))
        else:
            server.command("SET", key, base64.b64decode(kept), "PX", RULES["ttl"] * 1000 - 1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        BYTES.parent.mkdir(exist_ok=True)
        BYTES.write_text(
            json.dumps([write(former, Path(folder)) for former in (FIRST, LAST)], indent=1) + "\n", "utf-8"
        )

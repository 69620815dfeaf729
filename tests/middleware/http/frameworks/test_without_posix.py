"""What Windows does not have must not break the library. This is no Windows: what it lacks is taken away before the import."""

import subprocess
import sys

TAKEN_AWAY = """
import asyncio, concurrent.futures, logging, os, random, subprocess, sys, tempfile, threading  # these have their own ways
for name in ("fork", "register_at_fork", "geteuid", "getuid", "getpgid", "killpg", "setsid"):
    delattr(os, name)
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in {"fcntl", "termios", "resource", "pwd", "grp", "tty", "pty", "uvloop"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
for name in {"fcntl", "termios", "resource", "pwd", "grp", "tty", "pty"} & set(sys.modules):
    del sys.modules[name]
"""

LIBRARY = """
import importlib, pkgutil
import oncegate, oncegate.client, oncegate.fastapi, oncegate.faststream
for package in ("oncegate.middleware", "oncegate.cache"):
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
import httpx
from oncegate import IdempotencyMiddleware, MemoryCache

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"paid"})

async def main():
    there = httpx.ASGITransport(IdempotencyMiddleware(app, cache=MemoryCache()))
    async with httpx.AsyncClient(transport=there, base_url="http://api.example") as http:
        for _ in range(2):
            answer = await http.post("/payments", headers={"Idempotency-Key": "k-1"})
        print(answer.status_code, answer.headers["idempotent-replayed"])

asyncio.run(main())
"""

GATEWAY = """
from oncegate.app.cli.main import main
main([{command!r}])
"""


def run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", TAKEN_AWAY + code], capture_output=True, text=True, timeout=60)


def test_library_works() -> None:
    done = run(LIBRARY)
    assert (done.stdout, done.stderr, done.returncode) == ("201 true\n", "", 0)


def test_gateway_and_worker_say_what_they_need() -> None:
    for command in ("serve", "worker", "demo"):
        done = run(GATEWAY.format(command=command))
        assert done.stderr == (
            f"Error: oncegate {command} needs a POSIX system (Linux, macOS): on Windows run it in WSL or a container.\n"
        )
        assert done.returncode == 1

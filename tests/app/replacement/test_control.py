"""The control socket: whose it is, where it is, and what it takes."""

import asyncio
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from oncegate.app.listening import Listening
from oncegate.app.replacement import control, running
from oncegate.app.replacement.control import NotReplaced, control_path, open_control, remove_control
from oncegate.app.replacement.predecessor import Predecessor
from oncegate.app.replacement.running import ControlSocket
from oncegate.app.settings.gateway import GatewaySettings
from testing.servers import free_port
from testing.waiting import until


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "run"
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(made))
    return made


@asynccontextmanager
async def handing_over(path: Path) -> AsyncIterator[list[bool]]:
    """A gateway that can be replaced; what it returns is filled once it is."""
    replaced: list[bool] = []
    with open_control(path) as opened, socket.create_server(("127.0.0.1", 0)) as listening:
        serving = ControlSocket(opened, [listening], 1, os.getpid(), lambda: replaced.append(True))
        serving.start()
        try:
            yield replaced
        finally:
            await serving.stop()


async def exchange(path: Path, sent: bytes) -> bytes:
    """What it answers to ``sent``, until it closes the connection."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(sent)
    writer.write_eof()
    try:
        return await reader.read()
    finally:
        writer.close()


@asynccontextmanager
async def found(path: Path, workers: int) -> AsyncIterator[Predecessor]:
    """The gateway that is to be replaced by one with so many workers."""
    predecessor = await asyncio.to_thread(Predecessor.at, path, workers)
    assert predecessor is not None
    try:
        yield predecessor
    finally:
        predecessor.close()


def test_it_is_one_user_s_alone(folder: Path) -> None:
    path = control_path("::", 8080)
    assert path.parent == folder
    with open_control(path):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_gateway_that_may_write_nowhere_serves_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose file system is for reading only."""
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    monkeypatch.setenv("TMPDIR", "/proc")
    port = free_port()
    assert control_path("127.0.0.1", port).parent.parent == Path("/proc")
    listening = Listening(GatewaySettings(upstream="http://127.0.0.1:9", cache="redis://127.0.0.1:1", port=port))
    assert listening.replacement.control is None
    for each in listening.opened:
        each.close()


@pytest.mark.parametrize("make", [lambda f: f.mkdir(), lambda f: f.symlink_to(f.parent), lambda f: f.write_text("")])
def test_a_folder_in_which_others_may_write_is_not_used(folder: Path, make: Callable[[Path], None]) -> None:
    make(folder)
    if folder.is_dir() and not folder.is_symlink():
        folder.chmod(0o777)
    path = control_path("127.0.0.1", 8080)
    with pytest.raises(OSError, match="this user alone"):
        open_control(path)
    with pytest.raises(NotReplaced, match="this user alone"):
        Predecessor.at(path, 1)


def test_a_gateway_starts_without_one_where_none_can_be_made(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(folder / ("a" * 100)))
    caplog.set_level("INFO")
    folder.mkdir(mode=0o700)
    settings = GatewaySettings(upstream="http://127.0.0.1:1", cache="redis://127.0.0.1:1", port=free_port())
    listening = Listening(settings)
    assert not listening.replacement.can_be_replaced
    assert "can't be replaced in place: no control socket at" in caplog.text
    for each in listening.sockets:
        each.close()


def test_one_that_a_dead_gateway_has_left_is_replaced_and_another_one_s_is_left_alone(folder: Path) -> None:
    path = control_path("127.0.0.1", 8080)
    open_control(path).close()
    assert Predecessor.at(path, 1) is None
    first, second = open_control(path), open_control(path)
    remove_control(path, first)
    assert path.exists()
    remove_control(path, second)
    assert not path.exists()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"[]",
        b"\xff" * 999,
        b'{"protocol": 2, "workers": 1}',
        b'{"protocol": 1}',
        b'{"protocol": 1, "workers": "1"}',
        b'{"protocol": 1, "workers": 0}',
    ],
)
async def test_what_it_does_not_understand_it_refuses_and_goes_on(folder: Path, sent: bytes) -> None:
    path = control_path("127.0.0.1", 8080)
    async with handing_over(path) as replaced:
        answer = json.loads(await exchange(path, sent))
        assert "is of another version" in answer["refused"]
        with pytest.raises(NotReplaced, match="another version"):
            await asyncio.to_thread(Predecessor.at, path, 0)
        assert replaced == []


async def test_of_another_user_nobody_replaces_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = control_path("127.0.0.1", 8080)
    async with handing_over(path) as replaced:
        other = SimpleNamespace(geteuid=lambda: os.geteuid() + 1)
        monkeypatch.setattr(running, "os", other)
        with pytest.raises(NotReplaced, match=f"is of user {os.geteuid()}, and the running gateway of"):
            await asyncio.to_thread(Predecessor.at, path, 1)
        assert replaced == []


async def test_it_is_replaced_when_all_workers_could_serve_and_those_go_on_then(folder: Path) -> None:
    path = control_path("127.0.0.1", 8080)
    async with handing_over(path) as replaced, found(path, 2) as predecessor:
        assert len(predecessor.take(0)[0]) == 1
        first = asyncio.create_task(predecessor.leave(0, lambda: False))
        again = asyncio.create_task(
            predecessor.leave(0, lambda: False)
        )  # another one in the place of a worker that died
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(first), 0.3)
        assert not replaced
        assert not predecessor.has_left
        await predecessor.leave(1, lambda: False)
        assert replaced == [True]
        await asyncio.gather(first, again)
        assert predecessor.has_left
        await predecessor.leave(1, lambda: False)  # a later worker


async def test_one_that_does_not_start_in_time_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "START_SECONDS", 0.1)
    path = control_path("127.0.0.1", 8080)
    async with handing_over(path) as replaced, found(path, 2) as predecessor:
        with pytest.raises(NotReplaced, match="could not serve within"):
            await predecessor.leave(0, lambda: False)
        assert not replaced


async def test_who_says_nothing_holds_up_nobody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "HELLO_SECONDS", 0.2)
    path = control_path("127.0.0.1", 8080)
    async with handing_over(path) as replaced:
        reader, writer = await asyncio.open_unix_connection(path)
        async with found(path, 1) as predecessor:
            await predecessor.leave(0, lambda: False)
        await until(lambda: replaced)
        assert await reader.read() == b""
        writer.close()


def test_a_running_gateway_that_answers_nothing_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncegate.app.replacement.predecessor.HELLO_SECONDS", 0.1)
    path = control.control_path("127.0.0.1", 8080)
    with open_control(path), pytest.raises(NotReplaced, match="does not answer at"):
        Predecessor.at(path, 1)


async def test_who_comes_once_the_new_one_serves_is_the_new_one_s_to_accept(folder: Path) -> None:
    """Else two would have been started in one gateway's place, and nobody would ever end the first of them."""
    path = control_path("127.0.0.1", 8080)
    async with handing_over(path) as replaced, found(path, 1) as predecessor:
        await predecessor.leave(0, lambda: False)
        with socket.socket(socket.AF_UNIX) as third:
            third.setblocking(False)
            third.connect(str(path))
            third.send(b'{"protocol": 1, "workers": 1}\n')
            for _ in range(20):  # turns of the loop, in which the one that was replaced might accept
                await asyncio.sleep(0)
            assert replaced == [True]
            assert predecessor.control is not None
            accepted, _ = predecessor.control.accept()
            with accepted:
                assert accepted.recv(100) == b'{"protocol": 1, "workers": 1}\n'


async def test_a_new_one_that_ends_at_the_last_moment_leaves_the_running_one_to_be_replaced(folder: Path) -> None:
    path = control_path("127.0.0.1", 8080)
    async with handing_over(path) as replaced:
        predecessor = await asyncio.to_thread(Predecessor.at, path, 1)
        assert predecessor is not None
        predecessor._connection.send(b"\0")
        predecessor.close()
        async with found(path, 1) as another:
            await another.leave(0, lambda: False)
        await until(lambda: replaced == [True], "the other one serves")

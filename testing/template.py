"""Starts a program of ours as a process, without the second that Python takes to import it.

A process for each set of modules has imported them, and has done nothing else but collect garbage: no thread, no event loop, no
connection. For each start it forks; the copy takes the arguments, environment, working folder, standard streams and session that
it was given, becomes a child of whoever started it, and runs the program as Python would, to the end of its interpreter. Whatever
a test does to a process, and whatever it sees of one, is as with one that was started: its id, signals, the exit code, its
children.
"""

import atexit
import ctypes
import gc
import inspect
import json
import os
import random
import runpy
import signal
import socket
import struct
import subprocess
import sys
import time
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

ROOT = Path(__file__).parent.parent
GATEWAY = (
    "oncegate.app.cli.main",
    "oncegate.app.serve",
    "oncegate.app.work",
    "oncegate.app.operators.pages.api",
    "testing.compiled_pages",
    "oncegate.cache.memory.store",
    "encodings.idna",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
)
"""The modules of `oncegate serve` and `oncegate worker`."""
_SET_PDEATHSIG = 1
"""prctl(2): a signal that comes when the parent ends."""
_SET_CHILD_SUBREAPER = 36
"""prctl(2): orphans below the process become its children."""
_LENGTH = struct.Struct("!I")
_MOST_STREAMS = 10


class Forked(subprocess.Popen[Any]):
    """As ``subprocess.Popen([sys.executable, *arguments], ...)``, by the template that has imported ``preloaded``.

    The arguments begin with ``-c`` and a program, or with ``-m`` and a module.

    Takes the streams, ``text``, ``cwd``, ``env``, ``start_new_session`` and ``pass_fds``, of 100 and above. Where the
    environment's variables for Python itself are others than the template's, which has heeded them, a process is started
    after all.
    """

    def __init__(self, *arguments: str, preloaded: tuple[str, ...] = GATEWAY, **options: Any) -> None:
        self._template = _template(preloaded) if _for_python(options.get("env")) == _for_python(None) else None
        super().__init__([sys.executable, *arguments], **options)

    def _execute_child(self, *given: Any) -> None:
        """The part of `subprocess.Popen` that forks; everything around it stays."""
        base: Any = subprocess.Popen
        if self._template is None:
            base._execute_child(self, *given)
            return
        options = inspect.signature(base._execute_child).bind(self, *given).arguments
        streams = [
            standard if given_one == -1 else given_one
            for standard, given_one in enumerate((options["p2cread"], options["c2pwrite"], options["errwrite"]))
        ]
        environment = os.environ if options["env"] is None else options["env"]
        start = {
            "arguments": options["args"][1:],
            "environment": {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()},
            "folder": os.fspath(options["cwd"] or Path.cwd()),
            "session": bool(options["start_new_session"]),
            "parent": os.getpid(),
            "passed": list(options["pass_fds"]),
            "ignored": [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN],
        }
        self.pid = self._template.start(start, [*streams, *options["pass_fds"]])
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        closing: Any = self
        closing._close_pipe_fds(*(options[name] for name in pipes))


def run(
    *arguments: str, preloaded: tuple[str, ...] = GATEWAY, timeout: float = 100.0, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """As ``subprocess.run`` does it, with what it printed, as text."""
    pipe = subprocess.PIPE
    with Forked(*arguments, preloaded=preloaded, stdout=pipe, stderr=pipe, text=True, **options) as process:
        try:
            printed, complained = process.communicate(timeout=timeout)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, printed, complained)


def _for_python(environment: Any) -> dict[str, str]:
    environment = os.environ if environment is None else environment
    return {name: value for name, value in environment.items() if name.startswith("PYTHON")}


class Template:
    """The process that forks, seen from the one whose children the copies become."""

    def __init__(self, preloaded: tuple[str, ...]) -> None:
        self._ours, theirs = socket.socketpair()
        self._turn = Lock()
        command = [sys.executable, "-m", "testing.template", str(theirs.fileno()), *preloaded]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ONCEGATE_")}
        with theirs:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )

    def start(self, start: dict[str, Any], streams: list[int]) -> int:
        """The new process's id."""
        sent = json.dumps(start).encode()
        with self._turn:
            _adopt_orphans(True)  # one of them alone: other processes' orphans are nobody's children here
            try:
                socket.send_fds(self._ours, [_LENGTH.pack(len(sent))], streams)
                self._ours.sendall(sent)
                reply = self._ours.recv(_LENGTH.size, socket.MSG_WAITALL)
            finally:
                _adopt_orphans(False)
        if len(reply) != _LENGTH.size:
            raise RuntimeError("the template has ended: what it wrote stands above")
        pid: int = _LENGTH.unpack(reply)[0]
        return pid

    def end(self) -> None:
        self._ours.close()
        self._process.wait()


@lru_cache
def _template(preloaded: tuple[str, ...]) -> Template:
    template = Template(preloaded)
    atexit.register(template.end)
    return template


def _adopt_orphans(whether: bool) -> None:
    _prctl(_SET_CHILD_SUBREAPER, int(whether))


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


# -- in the template --------------------------------------------------------------------------------------------------


def _copies(channel: socket.socket) -> dict[str, Any]:
    """Serves starts until the tests have ended, and ends with them. Returns in the copies alone: what one is to be."""
    while True:
        head, streams, _, _ = socket.recv_fds(channel, _LENGTH.size, _MOST_STREAMS)
        if not head:
            sys.exit()
        length: int = _LENGTH.unpack(head)[0]
        start: dict[str, Any] = json.loads(channel.recv(length, socket.MSG_WAITALL))
        pid_out, pid_in = os.pipe()
        between = os.fork()
        if between == 0:
            between, copy = os.getpid(), os.fork()
            if copy:
                os.write(pid_in, _LENGTH.pack(copy))
                os._exit(0)  # which makes the copy an orphan
            for inherited in (pid_out, pid_in, channel.detach()):
                os.close(inherited)
            _become(start, streams, between)
            return start
        os.waitpid(between, 0)
        channel.sendall(os.read(pid_out, _LENGTH.size))
        for inherited in (pid_out, pid_in, *streams):
            os.close(inherited)


def _become(start: dict[str, Any], streams: list[int], between: int) -> None:
    while os.getppid() == between:
        time.sleep(0.0001)
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)  # as `testing.servers.bound`
    if os.getppid() != start["parent"]:  # it has ended meanwhile
        os._exit(1)
    if start["session"]:
        os.setsid()
    for target, stream in zip((0, 1, 2, *start["passed"]), streams, strict=True):
        os.dup2(stream, target)
        os.close(stream)
    for number in start["ignored"]:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(start["environment"])
    os.chdir(start["folder"])
    random.seed()


def _run(start: dict[str, Any]) -> None:
    kind, program, *arguments = start["arguments"]
    if kind == "-m":
        sys.path[0] = start["folder"]
        sys.argv = [program, *arguments]
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = ""
        sys.argv = ["-c", *arguments]
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    # Its copies start from what Python sets; what the tests' process ignored when it was started is another's affair.
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN and number not in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for name in sys.argv[2:]:
        import_module(name)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a copy would lack the threads that an import has started"
    # A copy's collector leaves alone what is imported: to look at it, last when the copy ends, would copy all of its memory.
    gc.collect()
    gc.freeze()
    _run(_copies(socket.socket(fileno=int(sys.argv[1]))))

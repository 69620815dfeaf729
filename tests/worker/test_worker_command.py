"""The command line of ``oncegate worker``: what it takes, what it refuses in one line, and how it ends.

Rules of docs/contract.md: R10.1, R10.8, R10.9.
"""

import signal
from pathlib import Path

import pytest

from oncegate.app import version
from oncegate.app.settings.worker import WorkerSettings
from testing.command_line import invoke, run, running
from testing.waiting import wait_until
from tests.worker.shop import LASTING, Shop, WorkerProcess, at_gate, waiting

REDIS = ["--cache", "redis://127.0.0.1:1/0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "cache: a worker needs the Redis that the gateway uses"),
        (["--cache", "memory://", "--handler", "json:loads"], "cache: a worker needs the Redis"),
        (REDIS, "worker: what executes the commands? Give --handler package.module:function or --forward URL"),
        ([*REDIS, "--handler", "json:loads", "--forward", "http://a"], "handler and forward exclude each other"),
        ([*REDIS, "--handler", "json"], "worker.handler (command line): is named package.module:function"),
        ([*REDIS, "--handler", "nowhere:f"], "worker.handler: nowhere can't be imported: ModuleNotFoundError"),
        ([*REDIS, "--handler", "json:nothing"], "worker.handler: json has no nothing"),
        ([*REDIS, "--forward", "ftp://x"], "worker.forward"),
        ([*REDIS, "--handler", "json:loads", "--concurrency", "0"], "worker.concurrency (command line)"),
        ([*REDIS, "--handler", "json:loads", "--max-attempts", "many"], "worker.max_attempts (command line)"),
        ([*REDIS, "--handler", "json:loads", "--stream", "a/b"], "worker.stream (command line)"),
        ([*REDIS, "--handler", "json:loads", "--config", "/no/such/file"], "/no/such/file: can't be read"),
    ],
)
def test_what_can_not_work_is_refused_in_one_line_that_names_it(arguments: list[str], message: str) -> None:
    done = invoke("worker", *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr


def test_a_handler_whose_inbox_has_other_secrets_is_refused(tmp_path: Path) -> None:
    environment = {"PAYMENTS": f"sqlite+aiosqlite:///{tmp_path}/app.db", "ONCEGATE_SECRET": "s" * 40}
    done = run("worker", *REDIS, "--handler", "tests.worker.paying:pay", **environment)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "worker.handler: the inbox and the subscription have different secrets" in done.stderr


def test_a_variable_that_is_none_of_its_settings_is_refused() -> None:
    done = invoke("worker", *REDIS, ONCEGATE_WORKER__MAX_ATTEMPT="3")
    assert done.returncode == 2
    assert "did you mean ONCEGATE_WORKER__MAX_ATTEMPTS?" in done.stderr


def test_help_shows_the_defaults_that_are_in_force() -> None:
    shown = " ".join(invoke("worker", "--help").stdout.split())
    settings = WorkerSettings()
    assert f"(default: {settings.concurrency})" in shown
    assert f"(default: {settings.max_attempts})" in shown
    assert f"The command stream to read (default: {settings.stream})" in shown


def test_settings_come_from_the_command_line_over_the_environment_over_the_file(shop: Shop) -> None:
    (shop.folder / "handlers_here.py").write_text("def book(payload):\n    return 'done'\n")
    (shop.folder / "gate.toml").write_text(
        f'cache = "{shop.url}"\nnamespace = "{shop.namespace}"\n[worker]\nstream = "s"\nconsumer = "c"\nhandler = "no:no"\n'
    )
    arguments = ["worker", "--config", str(shop.folder / "gate.toml"), "--handler", "handlers_here:book"]
    with running(*arguments, ONCEGATE_WORKER__STREAM="commands", PYTHONPATH=str(shop.folder)) as worker:
        worker.wait_for(version.running())
        worker.wait_for("reads stream commands as c")
        shop.submit("k")
        shop.becomes("k", "succeeded", "c")
        assert worker.stop() == 0


def test_a_handler_is_found_in_the_working_directory(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    (shop.folder / "handlers_there.py").write_text("def book(payload):\n    return 'done'\n")
    monkeypatch.chdir(shop.folder)
    where = ["--cache", shop.url, "--namespace", shop.namespace]
    with running("worker", *where, "--handler", "handlers_there:book") as worker:
        worker.wait_for("reads stream")
        shop.submit("k")
        shop.becomes("k", "succeeded")
        assert worker.stop(signal.SIGINT) == 0


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2], ids=lambda number: number.name)
def test_a_signal_that_asks_for_nothing_ends_no_worker(shop: Shop, number: signal.Signals) -> None:
    worker = executing(shop)
    worker.signal(number)
    worker.logs(f"{number.name} is ignored")
    shop.gate.touch()
    shop.done()
    assert shop.effects("k") == 1
    assert worker.stop() == 0


def test_sigquit_stops_a_worker_when_what_it_executes_has_ended(shop: Shop) -> None:
    worker = executing(shop)
    worker.signal(signal.SIGQUIT)
    worker.logs("what is executed ends first")
    shop.gate.touch()
    assert worker.code() == 0
    assert shop.effects("k") == 1


def executing(shop: Shop) -> WorkerProcess:
    """A worker that executes a command until the gate is open."""
    shop.submit("k", at_gate(shop))
    worker = shop.start(settings=LASTING)
    wait_until(lambda: waiting(shop), "the command is executed")
    return worker

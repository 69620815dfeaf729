"""A headless Chromium that is driven as a person drives it, by its DevTools protocol: opens, presses, types, reads."""

import base64
import json
import os
import signal
import subprocess
import tempfile
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Self

from websockets.sync.client import connect

from testing.servers import bound
from testing.waiting import PATIENCE, wait_until

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # It would ask hosts of its maker's: nothing but this machine is to be found.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
]


def went_wrong(event: dict[str, Any]) -> bool:
    """Whether an event says that a page did something wrong: a script's error, or what the browser warns of.

    Its mere notes don't count: it writes one where a person clicks into a field before the page's own focus is set, say.
    """
    noted = event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] in ("warning", "error")
    return noted or event["method"] == "Runtime.exceptionThrown"


class Browser:
    """The browser ``program``. A context manager: started on entry, ended with all that it has on exit.

    ``events`` are what it has reported of its pages so far, as the protocol has it.
    """

    def __init__(self, program: str) -> None:
        self.events: list[dict[str, Any]] = []
        self._program = program
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._numbers = count(1)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        profile = self._profile.name
        command = (*FLAGS, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank")
        quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self._process = subprocess.Popen(bound(self._program, *command), start_new_session=True, **quiet)
        found = Path(profile) / "DevToolsActivePort"
        wait_until(lambda: found.exists() and found.read_text().count("\n") == 1, "the browser listens")
        port, path = found.read_text().split("\n")
        opened = connect(f"ws://127.0.0.1:{port}{path}", max_size=None, open_timeout=PATIENCE)
        self._connection = self._open.enter_context(opened)
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._profile.cleanup()

    def session(self, *domains: str) -> str:
        """A new page with cookies of its own, of which events of ``domains`` are reported; by its session."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = str(self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in domains:
            self.call(f"{domain}.enable", session)
        return session

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The result of a command of the protocol, to the browser or to the page of a ``session``."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        self._connection.send(json.dumps(message | ({"sessionId": session} if session else {})))
        while True:
            got = self.next()
            if got.get("id") == number:
                assert "error" not in got, got["error"]
                result: dict[str, Any] = got["result"]
                return result

    def next(self) -> dict[str, Any]:
        """The next message; events are kept."""
        got: dict[str, Any] = json.loads(self._connection.recv(timeout=PATIENCE))
        if "method" in got:
            self.events.append(got)
        return got


class Chromium(Browser):
    """A browser with one page."""

    def __enter__(self) -> Self:
        super().__enter__()
        self._session = self.session("Page", "Runtime", "Log")
        return self

    @property
    def complaints(self) -> list[str]:
        """The errors that the page has caused so far: of scripts, of the policy, of what could not be loaded."""
        return [json.dumps(each["params"]) for each in self.events if went_wrong(each)]

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command about the page."""
        return self.call(method, self._session, **parameters)

    def look(self, width: int = 1440, height: int = 900, *, dark: bool = False, script: bool = True) -> None:
        """Have the page that is opened next be so large, dark or light, and with or without scripts."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.command("Emulation.setEmulatedMedia", features=scheme)
        self.command("Emulation.setScriptExecutionDisabled", value=not script)

    def open(self, url: str) -> None:
        """Returns once the page is there."""
        self.evaluate("window.former = true")
        self.command("Page.navigate", url=url)
        self.wait_for("!window.former && document.readyState === 'complete'", url)

    def evaluate(self, expression: str) -> Any:
        """What ``expression`` is in the page; fails with its error."""
        found = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, expression: str, what: str = "") -> Any:
        """What ``expression`` is once it is true; errors while a page comes count as not yet."""
        return wait_until(lambda: self.evaluate(expression), what or expression, not_yet=(AssertionError,))

    def text(self, selector: str) -> str:
        """What a reader of the element sees."""
        found: str = self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    def click(self, selector: str) -> None:
        """As a mouse does, in the middle of the element."""
        box = self.evaluate(
            f"(() => {{const each = document.querySelector({json.dumps(selector)}); each.scrollIntoView({{block: 'center'}});"
            "const box = each.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]})()"
        )
        where = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.command("Input.dispatchMouseEvent", type=kind, **where)

    def press(self, key: str) -> None:
        """A key of the keyboard: ``Tab`` or ``Enter``."""
        code, text = {"Tab": (9, ""), "Enter": (13, "\r")}[key]
        for kind in ("keyDown", "keyUp"):
            self.command(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **({"text": text} if text and kind == "keyDown" else {}),
            )

    def picture(self, file: Path, *, whole: bool = True) -> None:
        """Write the ``whole`` page as a PNG, or what of it is in sight."""
        shown = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shown["data"]))

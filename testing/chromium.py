"""A headless Chromium that is driven as a person drives it, by its DevTools protocol: opens, presses, types, looks."""

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
from urllib.request import urlopen

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


class Chromium:
    """One page of the browser ``program``. A context manager: started on entry, ended with all that it has on exit.

    ``complaints`` are the errors that pages have caused so far: of scripts, of the policy, of what could not be loaded.
    """

    def __init__(self, program: str) -> None:
        self.complaints: list[str] = []
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
        port = wait_until(lambda: found.read_text().split()[0], "Chromium is up", not_yet=(OSError, IndexError))
        pages = wait_until(lambda: self._pages(port), "Chromium has a page", not_yet=(OSError,))
        opened = connect(pages[0]["webSocketDebuggerUrl"], max_size=None, open_timeout=PATIENCE)
        self._connection = self._open.enter_context(opened)
        for domain in ("Page", "Runtime", "Log"):
            self.command(f"{domain}.enable")
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._profile.cleanup()

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command of the protocol."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=PATIENCE))
            if message.get("id") == number:
                assert "error" not in message, message["error"]
                result: dict[str, Any] = message["result"]
                return result
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(json.dumps(message["params"]))

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

    def picture(self, file: Path) -> None:
        """Write what is seen as a PNG."""
        shown = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shown["data"]))

    def _pages(self, port: str) -> list[dict[str, Any]]:
        with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=PATIENCE) as answer:
            return [each for each in json.load(answer) if each["type"] == "page"]

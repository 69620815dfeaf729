"""Pages in a headless Chromium that are driven as a person would, and what the browser reports went wrong in each."""

import json
from typing import Any

from testing.chromium import Browser, went_wrong

KEYS = {"Tab": 9, "Enter": 13, " ": 32}


class Chrome(Browser):
    """A browser of several pages."""

    def tab(self, **options: Any) -> "Tab":
        """A page with cookies of its own."""
        return Tab(self, self.session("Page", "Runtime", "Log", "Network"), **options)


class Tab:
    """One page: ``width`` in pixels, ``dark`` or light, with ``scripts`` or without."""

    def __init__(
        self, chrome: Chrome, session: str, *, width: int = 1440, dark: bool = False, scripts: bool = True
    ) -> None:
        self._chrome = chrome
        self._session = session
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._scripts = scripts
        self._allow_scripts(scripts)

    def open(self, url: str) -> None:
        """Go there, and wait until it is loaded."""
        seen = len(self._chrome.events)
        self._call("Page.navigate", url=url)
        self.loaded(seen)

    def loaded(self, seen: int) -> None:
        """Returns once a page that was come to since so many events is loaded.

        The load of the page before it doesn't count: a condition may be seen in a page that isn't loaded yet, and be acted on.
        """
        while not self._loaded_since(seen):
            self._chrome.next()

    def run(self, expression: str) -> Any:
        """What a script of ours in the page results in."""
        answer = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def examine(self, expression: str) -> Any:
        """The same of a script that has to wait, also in a page whose own scripts did not run."""
        self._allow_scripts(True)
        found = self.run(expression)
        self._allow_scripts(self._scripts)
        return found

    def click(self, selector: str) -> None:
        """Click what a selector chooses, which leads to another page."""
        seen = len(self._chrome.events)
        self.run(f"document.querySelector({json.dumps(selector)}).click()")
        self.loaded(seen)

    def click_on(self, element: str, *, leads_on: bool = True) -> None:
        """Click as a mouse does, in the middle of what a script (``element``) finds; it leads to another page, or not."""
        box = self.run(
            f"(() => {{ const found = {element}; if (!found) return null; found.scrollIntoView({{block: 'center'}});"
            "const box = found.getClientRects()[0]; return [box.x + box.width / 2, box.y + box.height / 2] })()"
        )
        assert box is not None, f"the page has no {element}"
        seen = len(self._chrome.events)
        for kind in ("mousePressed", "mouseReleased"):
            where = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
            self._call("Input.dispatchMouseEvent", type=kind, **where)
        if leads_on:
            self.loaded(seen)

    def fill(self, selector: str, text: str) -> None:
        """Write into a field."""
        self.run(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(text)}")

    def type(self, text: str) -> None:
        """Type where the focus is."""
        self._call("Input.insertText", text=text)

    def press(self, key: str, *, leads_on: bool = False) -> None:
        """Press a key."""
        seen = len(self._chrome.events)
        given = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        text = {"text": "\r"} if key == "Enter" else {"text": key} if key == " " else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", **given, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", **given)
        if leads_on:
            self.loaded(seen)

    def tab_to(self, what: str) -> None:
        """Press Tab until ``what`` (a script that is true of it) has the focus."""
        for _ in range(80):
            self.press("Tab")
            if self.run(f"(({what})(document.activeElement))"):
                return
        raise AssertionError(f"the keyboard does not get to {what}")

    def picture(self) -> bytes:
        """The whole page as it looks, a PNG in base64."""
        taken = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        return str(taken["data"]).encode()

    def wrong(self) -> list[str]:
        """What the browser has said went wrong so far: a script that ran and shouldn't have, what the policy refused, errors."""
        found = []
        for event in self._chrome.events:
            if event.get("sessionId") != self._session:
                continue
            if event["method"] == "Page.javascriptDialogOpening":
                found.append("a dialog")
            elif event["method"] == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"].get("text")))
            elif went_wrong(event) and event["params"]["entry"]["source"] != "network":
                found.append(event["params"]["entry"]["text"])
        return found

    def fetched(self) -> list[str]:
        """The addresses that the page has asked for."""
        events = [each for each in self._chrome.events if each.get("sessionId") == self._session]
        sent = [each for each in events if each["method"] == "Network.requestWillBeSent"]
        return [str(each["params"]["request"]["url"]) for each in sent]

    def _allow_scripts(self, allowed: bool) -> None:
        self._call("Emulation.setScriptExecutionDisabled", value=not allowed)

    def _loaded_since(self, seen: int) -> bool:
        later = [each["method"] for each in self._chrome.events[seen:] if each.get("sessionId") == self._session]
        # The first page is the one that was asked for: one that goes on by itself may have been left again.
        if "Page.frameNavigated" not in later:
            return False
        return "Page.loadEventFired" in later[later.index("Page.frameNavigated") :]

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._chrome.call(method, self._session, **params)

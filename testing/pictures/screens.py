"""Photographs of the demo and of the console in a headless Chromium, light and dark, after real payments and a real SIGKILL.

They differ from run to run in times, ids and ports; the words on them don't. Those are kept beside the pictures.
"""

import io
import json
import re
from pathlib import Path

from PIL import Image

from testing.chromium import Chromium
from testing.command_line import running
from testing.fetching import fetched
from testing.pictures.scene import TOKEN, operated
from testing.waiting import wait_until

WORDS = "screens.json"
"""The words of each picture, by its name; what differs from run to run is left out."""
COLOURS = 96
PRESSED = ("pay", "pay-again", "pay-twice", "gateway-dies")
"""The buttons of the demo that were pressed before it is photographed."""


class Camera:
    """Photographs pages into ``folder``, and keeps what is to be read on each: ``texts``."""

    def __init__(self, browser: Chromium, folder: Path) -> None:
        self.browser = browser
        self.texts: dict[str, str] = {}
        self._folder = folder

    def take(self, name: str, url: str, width: int, height: int, *, text: str = "body") -> None:
        """The page at ``url``, of which ``height`` pixels are seen, light and dark. ``text`` chooses the part that is read."""
        for suffix, dark in (("", False), ("-dark", True)):
            self.browser.look(width, height, dark=dark)
            self.browser.command("Emulation.setScrollbarsHidden", hidden=True)
            self.browser.open(url)
            taken = self._folder / f"{name}{suffix}.png"
            self.browser.picture(taken, whole=False)
            taken.write_bytes(smaller(taken.read_bytes()))
        self.texts[name] = self.browser.text(text)


def smaller(picture: bytes) -> bytes:
    """A PNG in `COLOURS` colours."""
    into = io.BytesIO()
    with Image.open(io.BytesIO(picture)) as found:
        few = found.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(into, "PNG", optimize=True)
    return into.getvalue()


def words(text: str) -> list[str]:
    """The lines of a page without what differs from run to run: ids, numbers, lengths of time. Each is there once."""
    text = re.sub(r"[A-Za-z0-9._]{20}:[A-Za-z0-9._]{20}", "(an id)", text)
    text = re.sub(r"\b(?=[0-9a-f-]*\d)[0-9a-f-]{6,}\b|\d[\d.,:-]*", "#", text)
    text = re.sub(r"(# (?:d|h|min|s|ms)\b ?)+", "(a time) ", text)
    return sorted({" ".join(line.split()) for line in text.splitlines()} - {""})


def take_all(folder: Path) -> dict[str, str]:
    """Photograph everything anew into ``folder``, and write down the words; the text of each page."""
    with Chromium(fetched("chromium")) as browser:
        camera = Camera(browser, folder)
        photograph_demo(camera)
        photograph_console(camera)
    kept = {name: words(text) for name, text in camera.texts.items()}
    (folder / WORDS).write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return camera.texts


def settled(browser: Chromium, console: str) -> bool:
    """Whether who is up stays the same from now on."""
    browser.open(console)
    up = str(browser.evaluate("document.querySelector('[aria-label=Processes]')?.innerText ?? ''"))
    return "gateway-1" not in up and "gateway-2" in up and "worker-1" in up


def photograph_demo(camera: Camera) -> None:
    """The demo's page, after its gateway was killed in a payment."""
    browser = camera.browser
    with running("demo", "--port", "0", PATH=f"{fetched('redis')}:/usr/bin:/bin") as demo:
        page = demo.wait_for(r"open (http://\S+)\n")[1]
        browser.look()
        browser.open(page)
        for number, name in enumerate(PRESSED, 1):
            browser.click(f'form[action="/actions/{name}"] button')
            browser.wait_for(f"document.querySelector('#outcome').innerText.startsWith('{number}. ')")
        # How often its client has to try again until the lease has lapsed, differs.
        camera.take("demo", page, 1440, 1200, text=".actions")


def photograph_console(camera: Camera) -> None:
    """Four pages: a gateway was killed in three payments, and a worker has given up commands."""
    browser = camera.browser
    with operated() as gateway:
        console = f"{gateway.url}/_oncegate/console"
        browser.look()
        browser.open(console)
        browser.evaluate(f"document.querySelector('#token').value = {json.dumps(TOKEN)}")
        browser.click("main button")
        browser.wait_for("document.querySelector('h1').innerText === 'Overview'")
        wait_until(
            lambda: settled(browser, console), "that the killed gateway's entry is over, and the worker has its own"
        )
        camera.take("overview", console, 1440, 960)
        camera.take("overview-phone", console, 360, 740)
        camera.take("unknown", f"{console}/unknown", 1440, 560)
        camera.take("commands", f"{console}/commands", 1440, 640)
        browser.open(f"{console}/unknown")
        camera.take("record", browser.evaluate("document.querySelector('tbody a').href"), 1440, 980)

"""The pictures of the docs are what a run makes, today; each reads in dark, in light and to a screen reader, and is on a page."""

import json
import re
import socket
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest

from testing.fetching import NotFetchedError, fetched
from testing.pictures import choice, runs, screens
from testing.pictures.drawing import sequence
from testing.pictures.events import Act, Message, Run

ROOT = Path(__file__).parents[2]
PICTURES = sorted((ROOT / "docs/pictures").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"
PAYMENT_BOOKED = "books payment 1"
SCREENS = sorted((ROOT / "docs/pictures").glob("*.png"))
WORDS: dict[str, list[str]] = json.loads((ROOT / "docs/pictures" / screens.WORDS).read_text("utf-8"))
MOST_BYTES = 600_000
"""Of all screens together: who reads the docs loads them."""
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("name", [*runs.RUNS])
def test_a_run_makes_the_picture_again(name: str, tmp_path: Path) -> None:
    run = runs.run(name, tmp_path)
    assert [event.text for event in run.events].count(PAYMENT_BOOKED) == 1, "one payment, whatever happened"
    assert sequence(run) == (ROOT / f"docs/pictures/{name}.svg").read_text("utf-8"), "run scripts/pictures"


def test_the_picture_of_the_parts_is_made_of_their_table() -> None:
    assert choice.draw() == (ROOT / "docs/pictures/choice.svg").read_text("utf-8"), "run scripts/pictures"
    parts = [part for _, part, _ in choice.CHOICES]
    assert sorted(parts) == ["asynchronous route", "function", "gateway", "hook", "inbox", "middleware"]


def test_there_is_no_picture_that_nothing_makes() -> None:
    assert {path.stem for path in PICTURES} == {"choice", *runs.RUNS}


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_a_picture_reads_without_eyes_in_the_dark_and_without_a_script(picture: Path) -> None:
    root = ElementTree.fromstring(picture.read_text("utf-8"))
    assert root.get("role") == "img"
    stated = [root.find(f"{SVG}{name}") for name in ("title", "desc")]
    assert [each is not None and bool(each.text) and each.get("id") for each in stated] == ["title", "desc"]
    assert root.get("aria-labelledby") == "title desc"
    described = str(stated[1].text) if stated[1] is not None else ""
    for element in root.iter(f"{SVG}text"):
        words = "".join(element.itertext())
        assert words in described or element.get("class") in ("name", "name start", "start"), words
    assert "prefers-color-scheme:dark" in str(root.findtext(f"{SVG}style"))
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        *("svg", "title", "desc", "style", "rect", "text", "path")
    }
    assert not re.search(r"(?i)href|url\(|@import|\son\w+=", picture.read_text("utf-8"))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_on_a_page_with_words_for_who_can_not_see_it(picture: Path) -> None:
    shown = [re.findall(rf"!\[(.+)\]\((?:docs/)?pictures/{picture.name}\)", page.read_text("utf-8")) for page in PAGES]
    assert any(shown)


def test_another_order_another_party_and_hostile_words_are_another_picture() -> None:
    def drawn(*events: Message | Act) -> str:
        return sequence(Run("title", ("a", "b"), list(events)))

    post, act = Message("a", "b", "POST"), Act("b", "books")
    assert len({drawn(post, act), drawn(act, post), drawn(Message("b", "a", "POST"), act), drawn(post)}) == 4
    hostile = ElementTree.fromstring(drawn(Act("a", "<script>&\"'</script>")))
    assert "<script>&\"'</script>" in ["".join(element.itertext()) for element in hostile.iter(f"{SVG}text")]


def test_nobody_is_noted_who_takes_no_part() -> None:
    with pytest.raises(ValueError, match="take no part"):
        Run("title", ("a", "b")).note(Message("a", "c", "POST"))


def size(picture: Path) -> tuple[int, int]:
    """Width and height of a PNG."""
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack("!II", data[16:24])


@pytest.mark.timeout(600)  # a demo, two gateways, a worker and a browser
def test_screens_taken_today_have_the_words_and_the_size_of_those_in_the_docs(tmp_path: Path) -> None:
    try:
        fetched("chromium")
    except NotFetchedError as error:
        pytest.skip(str(error))
    texts = screens.take_all(tmp_path)
    assert {name: screens.words(text) for name, text in texts.items()} == WORDS, "run scripts/pictures screens"
    assert {path.name: size(path) for path in tmp_path.glob("*.png")} == {path.name: size(path) for path in SCREENS}
    for text in texts.values():
        assert not re.search(rf"\b{re.escape(socket.gethostname())}/\d|{re.escape(str(Path.home()))}|/tmp/", text)


def test_the_screens_are_those_whose_words_are_known_and_small() -> None:
    assert {path.stem for path in SCREENS} == {f"{name}{suffix}" for name in WORDS for suffix in ("", "-dark")}
    assert sum(path.stat().st_size for path in SCREENS) < MOST_BYTES
    assert {size(path)[0] for path in SCREENS} == {360, 1440}


@pytest.mark.parametrize("name", WORDS)
def test_a_screen_is_on_a_page_light_and_dark_with_words_for_who_can_not_see_it(name: str) -> None:
    shown = re.compile(
        rf'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="((?:docs/)?pictures/){name}-dark\.png">\s*'
        rf'<img alt="[^"]{{20,}}" (?:width="[^"]+" )?src="\1{name}\.png">\s*</picture>'
    )
    assert any(shown.search(page.read_text("utf-8")) for page in PAGES)

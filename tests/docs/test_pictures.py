"""The pictures of the docs are what a run makes, today; each reads in dark, in light and to a screen reader, and is on a page."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from testing.pictures import choice, runs
from testing.pictures.drawing import sequence
from testing.pictures.events import Act, Message, Run

ROOT = Path(__file__).parents[2]
PICTURES = sorted((ROOT / "docs/pictures").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"
PAYMENT_BOOKED = "books payment 1"


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
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    shown = [re.findall(rf"!\[(.+)\]\((?:docs/)?pictures/{picture.name}\)", page.read_text("utf-8")) for page in pages]
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

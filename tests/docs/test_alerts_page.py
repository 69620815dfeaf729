"""Each alert leads to what is to be done about it."""

import re
from pathlib import Path

from tests.system.prometheus import ALERTS

PAGE = (Path(__file__).parents[2] / "docs/alerts.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (Oncegate\w+)\n\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))


def test_each_alert_has_its_section_and_no_other_is_there() -> None:
    assert list(SECTIONS) == list(ALERTS)


def test_each_alert_links_to_its_section() -> None:
    links = {name: rule["annotations"]["runbook_url"] for name, rule in ALERTS.items()}
    assert links == {name: f"https://docs.example.com/oncegate/alerts.md#{name.lower()}" for name in ALERTS}


def test_each_section_says_what_to_look_at_and_what_to_do() -> None:
    for name, text in SECTIONS.items():
        assert "- Look" in text, name
        assert "- Do: " in text or "Look and do: " in text, name


def test_an_alert_of_the_last_hour_says_so() -> None:
    for name, rule in ALERTS.items():
        assert ("[1h]" in rule["expr"]) is ("Active for an hour" in SECTIONS[name]), name

"""What documents say to type exists: each command of ``oncegate`` with its options, each environment variable."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from oncegate.app.cli.main import main
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.sources import NOT_SETTINGS
from oncegate.app.settings.worker import WorkerSettings
from oncegate.middleware.rules.settings import IdempotencySettings

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.*"))]
TEXTS = {path: path.read_text("utf-8") for path in DOCUMENTS if path.suffix not in (".json", ".png", ".svg")}
COMMAND = re.compile(r"(?:^|(?<=[`/( ]))oncegate +([a-z][^`\n#&;]*)", re.M)
NAMES = {f"ONCEGATE_{name.upper()}" for name in GatewaySettings.model_fields} | NOT_SETTINGS
for table, model in (("IDEMPOTENCY", IdempotencySettings), ("WORKER", WorkerSettings)):
    NAMES |= {f"ONCEGATE_{table}__{name.upper()}" for name in model.model_fields}


def typed() -> Iterator[tuple[str, list[str]]]:
    """Each command line in a document, as its words."""
    for path, text in TEXTS.items():
        for found in COMMAND.finditer(text):
            words = found[1].split()
            if words[0].split("|")[0] in main.commands:  # else it is the name, in a sentence
                yield path.name, words


def unknown(words: list[str]) -> list[str]:
    """The words of a command line that ``oncegate`` would not understand."""
    commands: list[click.Command] = [main]
    wrong = []
    for word in words:
        groups = [command for command in commands if isinstance(command, click.Group)]
        if word in (">", "2>", "|"):
            break
        if word.startswith("--"):
            options = {option for command in commands for param in command.params for option in param.opts}
            if word.rstrip(",.:)").partition("=")[0] not in options | {"--help"}:
                wrong.append(word)
        elif groups and re.fullmatch(r"[a-z|-]+", word):
            below = [group.commands.get(name) for group in groups for name in word.split("|")]
            wrong += [word] if None in below else []
            commands = [command for command in below if command is not None] or commands
    return wrong


def test_commands_are_found_and_wrong_ones_are_noticed() -> None:
    assert len(list(typed())) > 25
    assert unknown(["keys", "list|show", "--state", "unknown"]) == []
    assert unknown(["keys", "lost"]) == ["lost"]
    assert unknown(["keys", "resolve", "ID", "--stat", "201"]) == ["--stat"]


@pytest.mark.parametrize(
    ("document", "words"), [pytest.param(*each, id=f"{each[0]} {' '.join(each[1])}") for each in typed()]
)
def test_a_command_that_a_document_shows_is_one(document: str, words: list[str]) -> None:
    assert unknown(words) == [], document


def test_a_variable_that_a_document_names_is_one() -> None:
    named = {name for text in TEXTS.values() for name in re.findall(r"\bONCEGATE_[A-Z_]*[A-Z]\b", text)}
    assert named
    assert named - NAMES == set()

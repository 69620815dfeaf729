"""Builds the site of the docs into a folder: ``scripts/site.py FOLDER``.

The pages stay as a forge shows them. Sphinx gets copies at the same paths, among the other files that they link to; README.md is
the first page, and a folder that a page links to gets a page with what is in it.
"""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
SECTIONS = {
    "Begin": ("tutorial", "walkthrough", "faq", "comparison", "terminology"),
    "Requests": ("policies", "clients", "problems", "fastapi", "functions", "testing"),
    "Run it": (
        *(
            "rollout",
            "configuration",
            "operations",
            "alerts",
            "tracing",
            "security",
            "console",
            "behind-proxies",
            "scaling",
        ),
        *("databases", "performance"),
    ),
    "Commands and messages": (
        *("async", "worker", "subscriptions", "brokers", "inbox", "outbox", "ordering", "projections"),
        "patterns/README",
    ),
    "Know it": ("contract", "reference", "caches", "architecture", "state-machine", "decisions/index"),
}
"""The pages of docs/ in the site's contents. One that is missing here is an error of the build."""
SETTINGS = {
    "project": "oncegate",
    "html_title": "oncegate",
    "extensions": ["myst_parser"],
    "myst_heading_anchors": 4,  # as a forge makes them
    "html_theme": "furo",  # nothing of it comes from elsewhere
    "html_copy_source": False,
    "html_show_sourcelink": False,
    "html_show_copyright": False,
    "suppress_warnings": [
        "misc.highlighting_failure",  # Mermaid, and blocks that are a part of their language
        "myst.header",  # a page may leave out a level, as a forge lets it
    ],
}
_PICTURE = re.compile(r'^ *<(?:img|source)\b[^>]*?\b(?:src|srcset)="([^":]+)"', re.MULTILINE)
"""Of HTML in a page, which Sphinx leaves as it is."""
_LINK = re.compile(r"(```.*?^ *```|`[^`\n]*`)|(\]\()([^)#:\s]+)(?=[#)])", re.DOTALL | re.MULTILINE)


def build(target: Path, root: Path = ROOT, sections: dict[str, tuple[str, ...]] = SECTIONS) -> None:
    """Build the site of the project at ``root`` into ``target``, which is emptied first.

    Raises ``SystemExit`` for a link or an anchor that leads nowhere, and a page that ``sections`` lack.
    """
    with tempfile.TemporaryDirectory() as temporary:
        pages, work = Path(temporary, "pages"), Path(temporary, "work")
        gather(root, pages, sections)
        shutil.rmtree(target, ignore_errors=True)
        # Its own count of warnings is no public attribute.
        with Path(temporary, "warnings").open("w+") as warnings:
            Sphinx(pages, None, target, work, "html", SETTINGS, status=None, warning=warnings, freshenv=True).build()
            warnings.seek(0)
            found = re.sub(r"\x1b\[[0-9;]*m", "", warnings.read()).replace(f"{pages}{os.sep}", "")
        found += place_pictures(root, pages, target)
    if found:
        raise SystemExit(f"{found}scripts/site: mend what is named above")


def place_pictures(root: Path, pages: Path, target: Path) -> str:
    """Put the pictures of HTML in ``pages`` where the site at ``target`` has its pages; a line for each that is not there."""
    missing = ""
    for page in sorted(pages.rglob("*.md")):
        folder = page.relative_to(pages).parent
        for link in _PICTURE.findall(page.read_text("utf-8")):
            picture = Path(os.path.normpath(folder / link))
            if (root / picture).is_file():
                (target / picture).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / picture, target / picture)
            else:
                missing += f"{page.relative_to(pages)}: WARNING: there is no picture {link}\n"
    return missing


def gather(root: Path, pages: Path, sections: dict[str, tuple[str, ...]]) -> None:
    """Put the pages of the project at ``root``, and what they link to, into ``pages``."""
    shutil.copytree(root / "docs", pages / "docs")
    for name in ("CONTRIBUTING.md", "CHANGELOG.md", "README.md"):
        shutil.copy(root / name, pages)
    for page in sorted(pages.rglob("*.md")):
        page.write_text(_placed(page.read_text("utf-8"), root, pages, page.relative_to(pages).parent), "utf-8")
    (pages / "README.md").rename(pages / "index.md")
    _append(pages / "index.md", *(_contents(name, *(f"docs/{each}" for each in of)) for name, of in sections.items()))
    _append(pages / "index.md", _contents("The project", "CHANGELOG", "CONTRIBUTING"))
    for folder, name in (("decisions", "index"), ("patterns", "README")):
        listed = sorted(page.stem for page in (pages / "docs" / folder).glob("*.md") if page.stem != name)
        _append(pages / "docs" / folder / f"{name}.md", _contents("", *listed))


def _placed(text: str, root: Path, pages: Path, folder: Path) -> str:
    """``text`` of a page in ``folder``, with links to where the site has what they lead to, which is put there."""

    def place(found: "re.Match[str]") -> str:
        code, before, link = found.groups()
        if code is not None:
            return found[0]
        target = Path(os.path.normpath(folder / link))
        if target == Path("README.md"):
            target = Path("index.md")
        elif (root / target).is_dir():
            target /= "index.md"
            _list(root / target.parent, pages / target)
        elif (root / target).is_file() and not (pages / target).exists():
            (pages / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / target, pages / target)
        return f"{before}{os.path.relpath(target, folder)}"

    return _LINK.sub(place, text)


def _list(source: Path, page: Path) -> None:
    """A page with what is in the folder ``source``."""
    rows = []
    page.parent.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            if not (page.parent / path.name).exists():
                shutil.copy(path, page.parent)
            rows.append(f"- [{_title(path)}]({path.name})")
    page.write_text("\n".join(["---", "orphan: true", "---", "", f"# {source.name}", "", *rows, ""]), "utf-8")


def _title(path: Path) -> str:
    return path.read_text("utf-8").partition("\n")[0].removeprefix("# ") if path.suffix == ".md" else path.name


def _contents(caption: str, *pages: str) -> str:
    return "\n".join(
        ["", "```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), "", *pages, "```", ""]
    )


def _append(page: Path, *parts: str) -> None:
    page.write_text("".join([page.read_text("utf-8"), *parts]), "utf-8")


if __name__ == "__main__":
    build(Path(sys.argv[1]).absolute())

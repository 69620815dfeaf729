"""The site of the docs is built by one command, offline; its links lead somewhere, and it asks no other host for anything."""

import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
BUILT_WITHIN = 300.0
"""Seconds: it takes eight of a processor."""
pytestmark = pytest.mark.timeout(BUILT_WITHIN + 60)


class Page(HTMLParser):
    """What a page of the site refers to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        """Where one can go."""
        self.fetched: list[str] = []
        """What a browser fetches by itself."""
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") not in ("canonical", "search", "index", "next", "prev"):
            self.fetched.append(found.get("href", ""))
        self.fetched += [found[name] for name in ("src", "srcset", "data", "poster") if name in found and tag != "a"]
        self.fetched += re.findall(r"url\((.*?)\)", found.get("style", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "ALL_PROXY"), "http://127.0.0.1:9")
    command = [sys.executable, str(ROOT / "scripts/site.py"), str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=BUILT_WITHIN, env={"PATH": "/usr/bin:/bin", **nowhere}
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def found(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def test_each_page_of_the_docs_is_on_the_site(found: dict[Path, Page], site: Path) -> None:
    pages = {path.relative_to(ROOT).with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert len(pages) > 50
    assert {site / page for page in pages} <= set(found)
    contents = {(site / urlsplit(link).path).resolve() for link in found[site / "index.html"].links}
    assert {(site / page).resolve() for page in pages} <= contents, "the contents have each"


def test_links_and_their_anchors_lead_somewhere(found: dict[Path, Page]) -> None:
    looked_at = 0
    for path, page in found.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), f"{path.name}: {link}"
            if parts.fragment and target in found:
                looked_at += 1
                assert unquote(parts.fragment) in found[target].ids, f"{path.name}: {link}"
    assert looked_at > 100


def test_nothing_is_fetched_from_elsewhere(found: dict[Path, Page], site: Path) -> None:
    fetched = [(path, reference) for path, page in found.items() for reference in page.fetched]
    assert any(".css" in reference for _, reference in fetched)
    for path, reference in fetched:
        assert reference.startswith("data:") or not (urlsplit(reference).scheme or urlsplit(reference).netloc), (
            reference
        )
        assert reference.startswith("data:") or (path.parent / unquote(urlsplit(reference).path)).exists(), reference
    for sheet in site.rglob("*.css"):
        for reference in re.findall(r"url\(['\"]?(.*?)['\"]?\)|@import ['\"](.*?)['\"]", sheet.read_text("utf-8")):
            assert not re.match(r"(https?:)?//", "".join(reference)), (sheet.name, reference)


@pytest.mark.parametrize(("term", "page"), [("fingerprint", "docs/terminology"), ("lease", "docs/policies")])
def test_the_search_s_index_has_the_terms_of_the_field(site: Path, term: str, page: str) -> None:
    index = (site / "searchindex.js").read_text("utf-8")
    stem = re.sub("e$", "", term)
    assert re.search(rf'\b{stem}e?"?:', index)
    assert f'"{page}"' in index
    assert (site / "search.html").exists()


def test_pictures_are_on_the_site(site: Path) -> None:
    assert {path.name for path in (ROOT / "docs/pictures").glob("*.svg")} <= {
        path.name for path in (site / "_images").iterdir()
    }
    for screen in (ROOT / "docs/pictures").glob("*.png"):
        assert (site / screen.relative_to(ROOT)).read_bytes() == screen.read_bytes()


WRONG = {
    '<img alt="a" src="docs/nowhere.png">': "docs/nowhere.png",
    '<source srcset="docs/nowhere-dark.png">': "docs/nowhere-dark.png",
    "[a](docs/nowhere.md)": "docs/nowhere.md",
    "[a](docs/faq.md#no-question)": "no-question",
    "[a](#no-heading)": "no-heading",
    "![a](docs/nowhere.svg)": "docs/nowhere.svg",
}
"""Links, and what the build says of each."""


@pytest.mark.filterwarnings("ignore:.*is deprecated. Check CHANGES for Sphinx API modifications")  # MyST's, within
def test_a_link_or_an_anchor_that_leads_nowhere_and_a_page_left_out_end_the_build(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for folder in ("decisions", "patterns"):
        (root / "docs" / folder).mkdir(parents=True)
    for name in (
        "docs/patterns/README.md",
        "docs/decisions/0001-a.md",
        "docs/faq.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
    ):
        (root / name).write_text("# A page\n")
    sections = {"Begin": ("faq", "patterns/README", "decisions/index")}
    good = "# First\n\n[why](docs/decisions), [questions](docs/faq.md#a-page), [here](#first)\n"
    (root / "README.md").write_text("\n\n".join([good, *WRONG]))
    (root / "docs/left-out.md").write_text("# Left out\n")
    with pytest.raises(SystemExit) as ended:
        _builder().build(tmp_path / "site", root, sections)
    stated = str(ended.value)
    assert [each for each in (*WRONG.values(), "left-out.md") if each not in stated] == []
    assert stated.count("WARNING") == len(WRONG) + 1


def _builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_of_the_docs", ROOT / "scripts/site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""The pages that problems point to, and that they are where problems say.

Rules of docs/contract.md: R4.2, R11.35.
"""

import re
from html.parser import HTMLParser

import pytest

from oncegate.middleware.outcome.problem_kinds import KINDS
from testing.served import served
from testing.servers import free_port

KEYED = {"idempotency-key": "a,b"}


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.found += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: str) -> Links:
    links = Links()
    links.feed(page)
    return links


@pytest.mark.parametrize("prefix", ["/_oncegate", "/ops/idempotency"])
async def test_a_problem_leads_to_a_page_about_it(prefix: str) -> None:
    async with served(f"http://127.0.0.1:{free_port()}", prefix=prefix, public=[]) as (client, _):
        for answer in (await client.post("/payments", headers=KEYED), await client.get("/payments")):
            problem = answer.json()
            assert problem["type"] == f"{prefix}/problems/{problem['code']}"
            assert answer.headers["link"] == f'<{problem["type"]}>; rel="describedby"; type="text/html"'
            page = await client.get(problem["type"])
            assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
            assert problem["title"] in read(page.text).text


async def test_every_problem_has_one_which_says_all_and_loads_nothing() -> None:
    async with served(f"http://127.0.0.1:{free_port()}", ops_port=free_port(), public=[]) as (client, _):
        for index in ("/_oncegate/problems", "/_oncegate/problems/"):
            listed = read((await client.get(index)).text).found
            assert listed == [f"/_oncegate/problems/{slug}" for slug in KINDS]
        for slug, kind in KINDS.items():
            page = await client.get(f"/_oncegate/problems/{slug}")
            assert page.headers["content-security-policy"].startswith("default-src 'none'")
            shown = read(page.text)
            for words in (kind.title, str(kind.status), "What happened.", "What was executed.", "Send it again?"):
                assert words in shown.text, (slug, words)
            assert "What to do." in shown.text
            assert shown.tags.isdisjoint({"script", "link", "img", "iframe", "form"})
            assert set(shown.found) <= KINDS.keys(), "links lead to its neighbours alone"
            assert not re.search(r"\*\*|`|\]\(", shown.text), "marks are no words"
            assert (await client.head(f"/_oncegate/problems/{slug}")).content == b""


@pytest.mark.parametrize("slug", ["x", "in-flight/x", "<b>", "In-Flight", "%00"])
async def test_what_is_no_problem_is_404(slug: str) -> None:
    async with served(f"http://127.0.0.1:{free_port()}", public=[]) as (client, _):
        answer = await client.get(f"/_oncegate/problems/{slug}")
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
        assert "<b>" not in answer.text


async def test_pages_of_one_s_own_take_their_place() -> None:
    docs = {"/a": "https://docs.example/keys", "/b": "https://docs.example/keys/"}
    routes = [{"path": path, "docs_url": url} for path, url in docs.items()]
    async with served(f"http://127.0.0.1:{free_port()}", routes=routes) as (client, _):
        one, other, default = [await client.post(path, headers=KEYED) for path in ("/a", "/b", "/c")]
    assert (one.json()["type"], one.links["describedby"]["url"]) == (f"{docs['/a']}#key-invalid", docs["/a"])
    assert other.json()["type"] == other.links["describedby"]["url"] == f"{docs['/b']}key-invalid"
    assert default.json()["type"] == "/_oncegate/problems/key-invalid"

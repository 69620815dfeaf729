"""A browser of forms: it keeps cookies, follows what it is led to, and sends forms as they stand in the page."""

import os
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import httpx

from oncegate.cache.record import Record, State, Trace
from oncegate.cache.store import Cache
from oncegate.middleware.rules.keys.key import record_id, record_key

AS_A_BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
CONSOLE = "/_oncegate/console"
READER, WRITER = "oncegate-a-token-that-reads", "oncegate-a-token-that-changes"


@dataclass
class Form:
    """A form of a page: where it goes, and its fields as they stand there."""

    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)
    buttons: list[str] = field(default_factory=list)


class _Reading(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.forms: list[Form] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._within: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        self._within.append(tag)
        if tag == "form":
            self.forms.append(Form(given.get("action") or "", given.get("method") or "get"))
        elif tag in ("input", "select", "textarea") and self.forms and given.get("name"):
            checked = given.get("type") not in ("radio", "checkbox") or "checked" in given
            if checked:
                self.forms[-1].fields[str(given["name"])] = given.get("value") or ""
        elif tag == "button" and self.forms:
            self.forms[-1].buttons.append(given.get("name") or "")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


class Browsed:
    """An answer, read as a page."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.status = answer.status_code
        reading = _Reading()
        reading.feed(answer.text)
        reading.close()
        self.forms, self.tags = reading.forms, reading.tags
        self.text = " ".join(" ".join(reading.text).split())

    def form(self, action: str) -> Form:
        """The form whose address ends so."""
        found = [each for each in self.forms if each.action.endswith(action)]
        assert found, f"no form {action} among {[each.action for each in self.forms]}"
        return found[0]

    def links(self) -> list[str]:
        """Where it links to."""
        return [str(given["href"]) for tag, given in self.tags if tag == "a" and given.get("href")]


class Browser:
    """Goes to pages of the console by ``client``. ``cache`` is the gateway's, for records that no request of a test makes."""

    def __init__(self, client: httpx.AsyncClient, cache: Cache | None = None) -> None:
        self.client = client
        self.cache = cache

    async def keep_unknown(self, key: str, **trace: Any) -> str:
        """A record of unknown outcome with this trace; its id."""
        assert self.cache is not None
        address = record_key("default", key, None)
        record = Record(State.UNKNOWN, os.urandom(16), b"f" * 16, 1, None, trace=Trace(**trace))
        await self.cache.complete(address, record, ttl_ms=600_000)
        return record_id(address)

    async def open(self, path: str = "", **headers: str) -> Browsed:
        """The page of an address, or below the console."""
        address = path if path.startswith("/_oncegate") else CONSOLE + path
        answer = await self.client.get(address, headers=AS_A_BROWSER | headers, follow_redirects=True)
        return Browsed(answer)

    async def send(self, form: Form, headers: dict[str, str] | None = None, **given: Any) -> Browsed:
        """What a form leads to, once it is filled in."""
        sent = {"sec-fetch-site": "same-origin", "origin": "null"} if headers is None else headers
        answer = await self.client.post(form.action, data=form.fields | given, headers=AS_A_BROWSER | sent)
        if answer.status_code == 303:
            return await self.open(answer.headers["location"])
        return Browsed(answer)

    async def log_in(self, token: str = WRITER) -> Browsed:
        """The first page, by a token."""
        return await self.send((await self.open()).form("/log-in"), token=token)

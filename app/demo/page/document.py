"""The page as HTML: its live regions, and the whole. Works without a script, too; with one the regions follow by themselves."""

from collections.abc import Sequence
from dataclasses import dataclass

from oncegate.app.demo.actions import ACTIONS, Button, curl_lines, request_of
from oncegate.app.demo.faults import Faults
from oncegate.app.demo.page.html import Html, element, join
from oncegate.app.demo.paying import SHOWN_HEADERS, Paying, Sent, is_possible, summary
from oncegate.app.demo.readings import Readings
from oncegate.app.demo.stack import OLDEST_REDIS

_NO_REDIS = (
    f"Needs a redis-server, {OLDEST_REDIS}.0 or newer, on the PATH (apt-get install redis-server): start the demo again then. "
    "Records are in a file of SQLite now, which can't be away."
)
_BODY_SHOWN = 600


@dataclass(frozen=True, slots=True)
class DemoPage:
    """The page at ``url``."""

    url: str
    readings: Readings
    paying: Paying
    faults: Faults

    def regions(self) -> dict[str, Html]:
        """The parts of the page that change, by the ids of the elements that hold them."""
        return {
            "counts": self._counts(),
            "outcome": join(self._outcome()),
            "sent": join(*map(_sent, self.paying.sent)) or element("p", "Nothing yet: press a button.", class_="none"),
            "key": join(self.readings.last.key if self.readings.last else "none yet"),
            "timeline": self._timeline(),
            "books": self._books(),
            **{f"curl-{action.name}": self._curl(action) for action in ACTIONS},
        }

    def whole(self) -> str:
        """The document."""
        regions = self.regions()
        head = element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("title", "oncegate: the demo"),
            element("link", rel="stylesheet", href="/demo.css"),
            element("link", rel="icon", href="data:,"),
            element("script", src="/demo.js", defer=True),
        )
        header = element(
            "header",
            element("h1", "What an idempotency key does"),
            element("p", "A client pays through oncegate, and things break. Look how often each key is booked."),
            element("dl", regions["counts"], id="counts", class_="counts", data_live=True),
            element("p", regions["outcome"], id="outcome", role="status", data_live=True),
        )
        columns = (
            _column("client", "The client", self._buttons(regions), _live("div", "sent", regions)),
            _column(
                "record",
                "The key's timeline",
                element("p", "Key: ", element("code", regions["key"], id="key", data_live=True)),
                _live("ol", "timeline", regions),
            ),
            _column("service", "The service's own books", _live("div", "books", regions)),
        )
        body = element("body", header, element("main", *columns))
        return "<!doctype html>\n" + element("html", head, body, lang="en")

    def _counts(self) -> Html:
        books = self.readings.books
        counts = (("sent", self.readings.sent), ("arrived", books["arrived"]), ("executed", books["executed"]))
        return join(
            *(
                element("div", element("dt", name), element("dd", str(count), id=f"count-{name}"))
                for name, count in counts
            )
        )

    def _outcome(self) -> str:
        return f"{self.paying.busy.label}: under way …" if self.paying.busy is not None else self.paying.outcome

    def _buttons(self, regions: dict[str, Html]) -> Html:
        return element("ul", *(self._button(action, regions) for action in ACTIONS), class_="actions")

    def _button(self, action: Button, regions: dict[str, Html]) -> Html:
        possible = is_possible(action, self.faults)
        described = f"promise-{action.name}"
        button = element("button", action.label, type="submit", aria_describedby=described, disabled=not possible)
        return element(
            "li",
            element("form", button, method="post", action=f"/actions/{action.name}"),
            element("p", action.promise if possible else _NO_REDIS, id=described),
            element(
                "pre",
                element("code", regions[f"curl-{action.name}"], id=f"curl-{action.name}", data_live=True),
                aria_label=f"{action.label}, by curl",
                role="group",
            ),
        )

    def _curl(self, action: Button) -> Html:
        request = request_of(action, self.readings.last, self.readings.fresh_key)
        return join("\n".join(curl_lines(action, request, self.readings.stack.gateway.address, self.url)))

    def _timeline(self) -> Html:
        events = self.readings.events
        return join(
            *(
                element("li", element("time", at), " ", element("b", source), " ", text, class_=source)
                for at, source, text in events
            )
        )

    def _books(self) -> Html:
        readings = self.readings
        booked = sum(entry["payment"] is not None for entry in readings.entries)
        words = f"Booked under this key: {booked}." if readings.last else "Nothing has arrived."
        rows = [
            element(
                "tr",
                element("td", str(entry["number"])),
                element("td", entry["key"] or "(none)"),
                element("td", entry["body"]),
                element("td", entry["payment"]["id"] if entry["payment"] else "not booked"),
            )
            for entry in reversed(readings.books["entries"])
        ]
        head = element("tr", *(element("th", name, scope="col") for name in ("POST", "Key", "Payload", "Booked as")))
        table = element("table", element("thead", head), element("tbody", *rows))
        is_up = readings.stack.payments.up.is_set()
        state = "" if is_up else "The service is down: this is what it last showed."
        return join(element("p", words, id="booked"), element("p", state) if state else "", table)


def _live(name: str, identifier: str, regions: dict[str, Html]) -> Html:
    return element(name, regions[identifier], id=identifier, data_live=True)


def _column(name: str, heading: str, *children: str) -> Html:
    title = element("h2", heading, id=f"heading-{name}")
    labelled = f"heading-{name}"
    # What stays in sight beside the buttons scrolls, by the keyboard, too.
    focusable = {"tabindex": "0"} if name != "client" else {}
    return element("section", title, *children, class_=name, aria_labelledby=labelled, **focusable)


def _sent(sent: Sent) -> Html:
    request = sent.request
    lines = [f"POST {request.path}", f"Idempotency-Key: {request.key}", request.body]
    return element(
        "article",
        element("h3", summary(sent)),
        element("pre", "\n".join(lines)),
        element("pre", "\n".join(_answer_lines(sent))) if sent.answer else "",
    )


def _answer_lines(sent: Sent) -> Sequence[str]:
    if sent.answer is None:
        return []
    shown = [f"{name}: {sent.answer.headers[name]}" for name in SHOWN_HEADERS if name in sent.answer.headers]
    body = str(sent.problem.get("detail") or sent.answer.body.decode("utf-8", "replace").rstrip())[:_BODY_SHOWN]
    return [str(sent.answer.status), *shown, body]

"""HTML of which nothing but its own elements is markup: every other text is escaped."""

from html import escape

_EMPTY = ("meta", "link")


class Html(str):
    """Markup, as `element` makes it."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str | bool) -> Html:
    """``<name attributes>children</name>``. An attribute of ``True`` has no value, one of ``False`` is left out."""
    given = "".join(_attribute(each.rstrip("_").replace("_", "-"), value) for each, value in attributes.items())
    if name in _EMPTY:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{join(*children)}</{name}>")


def join(*parts: str) -> Html:
    """One after the other."""
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts))


def _attribute(name: str, value: str | bool) -> str:
    if isinstance(value, bool):
        return f" {name}" if value else ""
    return f' {name}="{escape(value)}"'

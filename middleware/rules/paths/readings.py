"""The paths that different servers may read from one request target.

Which of them the upstream is isn't known here. So that no spelling of a guarded path escapes, the strictest rules of all readings
count (`oncegate.middleware.rules.policies.Policies`).

| reading | of whom |
| --- | --- |
| as it is, dots and empty segments too | Express, Flask, Starlette, Rails |
| slashes merged, dots resolved | nginx, Apache, Go |
| as a URL (WHATWG): two slashes or backslashes begin an authority, backslashes are slashes, ``%2f`` is none | Node.js |
| without ``;`` parameters, backslashes as slashes | servlet containers |
| dots resolved as sent, then decoded | proxies before frameworks |
| decoded once more | an app behind a proxy that has decoded it |
| up to a decoded ``?``, ``#`` or NUL | who parses what was decoded; C |
| each of these in lower case | Express, IIS |

Not read are overlong UTF-8, dots and blanks at the end of a segment, other Unicode normal forms: no common server folds them.
All of it takes a time that is linear in the path's length.
"""
# Compiled: docs/decisions/0012-compiled.md

import re
from typing import Final
from urllib.parse import unquote

LONGEST: Final = 4096
"""Characters of a path that is read in all these ways."""

_PARAMETERS: Final = re.compile(r";[^/]*")
_CUT: Final = re.compile("[?#\0]")
_is_read_in_several_ways: Final = re.compile(r"[;\\%?#\0]|//|/\.").search
_syntax: Final = re.compile(rb"%(?:2[ef]|5c)", re.IGNORECASE).search
_SEPARATOR: Final = re.compile(r"%(?=2f|5c)", re.IGNORECASE)


def is_read_in_several_ways(path: str) -> bool:
    """Whether servers differ in what they make of a decoded path, apart from its case."""
    return _is_read_in_several_ways(path) is not None


def holds_encoded_syntax(raw_path: bytes) -> bool:
    """Whether a path as sent holds an encoded slash, backslash or dot, which only some servers decode before they split."""
    return _syntax(raw_path) is not None


def readings(path: str, raw_path: bytes = b"") -> list[str]:
    """The paths that servers may read, each once. ``path`` is decoded, ``raw_path`` as sent, where that is known."""
    raw = raw_path.decode("utf-8", "replace")
    # As by splitting a path before decoding its segments: an encoded slash stays within one segment.
    kept = unquote(_SEPARATOR.sub("%25", raw)) if raw else path
    found = [
        path,
        normalise(path),
        kept,
        _as_url(kept),
        _as_url(path),
        normalise(folded(path)),
        unquote(normalise(raw)) if raw else path,
        normalise(unquote(path)),
        normalise(_CUT.split(path, maxsplit=1)[0]),
    ]
    if path.endswith("/"):
        found += [reading + "/" for reading in found if not reading.endswith("/")]
    return list(dict.fromkeys(found))


def normalise(path: str) -> str:
    """A decoded path with empty and dot segments resolved (RFC 3986 section 5.2.4) and no slash at its end."""
    segments = [segment for segment in path.split("/") if segment and segment != "."]
    if ".." not in segments:
        return "/" + "/".join(segments)
    kept: list[str] = []
    for segment in segments:
        if segment == "..":
            del kept[-1:]
        else:
            kept.append(segment)
    return "/" + "/".join(kept)


def folded(path: str) -> str:
    """A path without ``;`` parameters (servlet containers), and with backslashes as slashes (browsers, Node.js)."""
    return _PARAMETERS.sub("", path.replace("\\", "/"))


def _as_url(path: str) -> str:
    """The path as the WHATWG's URL parser reads it behind a base: an authority first, and empty segments count before dots."""
    path = path.replace("\\", "/")
    if path.startswith("//"):
        path = "/" + path.lstrip("/").partition("/")[2]
    kept: list[str] = []
    for segment in path[1:].split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    return normalise("/" + "/".join(kept))

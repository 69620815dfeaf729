"""One HTTP exchange: what is sent as a client sends it, and what comes back. Blocks its thread."""

import http.client
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

WITHIN = 30.0
"""Seconds that each part of an answer may take."""
_MOST_BYTES = 1024 * 1024


class NoAnswer(Exception):
    """There was no whole answer: the text says why, in a few words."""


class Answer(NamedTuple):
    """A response, its headers by their names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def exchange(method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> Answer:
    """Raises `NoAnswer`."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WITHIN)
    try:
        connection.request(method, parts.path, body, dict(headers))
        response = connection.getresponse()
        fields = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, fields, response.read(_MOST_BYTES))
    except ConnectionRefusedError:
        raise NoAnswer("nobody listens: connection refused") from None
    except TimeoutError:
        raise NoAnswer(f"no answer within {WITHIN:g} s") from None
    except (OSError, http.client.HTTPException, UnicodeEncodeError):
        raise NoAnswer("the connection broke before an answer") from None
    finally:
        connection.close()

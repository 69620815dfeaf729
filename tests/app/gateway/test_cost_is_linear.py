"""What a client, an upstream or Redis sends takes time in proportion to its size, whatever it is made of.

Each parser is given inputs in which one piece is repeated, which is what drives a parser with more than one way to read its
input through all of them. Hypothesis makes the pieces of what means something to the parser.

Rules of docs/contract.md: R9.16.
"""

import re
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncegate.middleware.rules.paths.path_pattern import PathPattern
from testing.growth import is_linear
from tests.app.parsers import PARSERS, REFUSALS, Parser

_ON_A_STAND_IN = ("client's requests", "client's target")
"""Fed without a connection: a compiled parser takes nothing else for one."""
NAMES = [pytest.param(name, marks=pytest.mark.interpreted) if name in _ON_A_STAND_IN else name for name in PARSERS]
SIZES = (2048, 60_000)
"""Bytes. What isn't linear should be found among little: at 60 KB it may take minutes."""


def sparing(parser: Parser) -> Parser:
    """``parser``, whose refusals are as good as what it returns."""

    def parse(sent: bytes) -> None:
        with suppress(*REFUSALS):
            parser(sent)

    return parse


def pieces(tokens: tuple[bytes, ...], most: int) -> st.SearchStrategy[bytes]:
    return st.lists(st.sampled_from(tokens), max_size=most).map(b"".join)


def several(piece: bytes, size: int) -> bytes:
    """``piece`` again and again, with its number where it says N: what is repeated may be many different things, too."""
    if b"N" not in piece:
        return piece * (size // len(piece))
    return b"".join(piece.replace(b"N", b"%05d" % number) for number in range(size // (len(piece) + 4)))


@pytest.mark.interpreted  # compiled, each parser has its pieces below: what takes longer for more of them is in the source
@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_cost_of_what_is_sent_is_linear_in_its_size(name: str, data: st.DataObject) -> None:
    parser, tokens = PARSERS[name]
    before, after = data.draw(pieces(tokens, 3)), data.draw(pieces(tokens, 2))
    repeated = data.draw(pieces(tokens, 4).filter(bool))

    def make(size: int) -> bytes:
        return before + several(repeated, size) + after

    assert all(is_linear(sparing(parser), make, size) for size in SIZES)


@pytest.mark.parametrize("name", NAMES)
def test_the_cost_of_each_piece_again_and_again_is_linear(name: str) -> None:
    parser, tokens = PARSERS[name]
    for token in tokens:
        assert all(is_linear(sparing(parser), partial(several, token), size) for size in SIZES), token


# What each was before, or might become: the measure has to find it.
def old_prefer(data: bytes) -> object:
    return re.findall(rb'(?:[^,"]|"(?:[^"\\]|\\.)*")+', data)


def old_pattern(data: bytes) -> object:
    return re.compile(rb"/a.*b.*/c", re.DOTALL).fullmatch(data)


def ambiguous_parameters(data: bytes) -> object:
    return re.compile(rb'"a"(?: *; *[a-z]* *)*').fullmatch(data)


def added_up(data: bytes) -> object:
    chunks: tuple[bytes, ...] = ()
    for number in range(len(data)):
        chunks += (data[number : number + 1],)
    return b"".join(chunks)


def taken_out_one_by_one(data: bytes) -> object:
    lines = [b"%d" % number for number in range(len(data) // 8)]
    for line in sorted(lines, reverse=True):
        lines.remove(line)
    return lines


def united_line_by_line(data: bytes) -> object:
    named: frozenset[bytes] = frozenset()
    for number in range(len(data) // 8):
        named |= frozenset([b"%d" % number])
    return named


def sought_in_a_list(data: bytes) -> object:
    named = [b"%d" % number for number in range(len(data) // 8)]
    return [line for line in named if line + b"x" not in named]


@pytest.mark.parametrize(
    ("parser", "before", "repeated", "largest"),
    [
        (old_prefer, b'"', b'\\"', 2048),
        (old_pattern, b"/a", b"b", 4096),
        (ambiguous_parameters, b'"a";', b" ", 256),
        (added_up, b"", b"a", 8192),
        (taken_out_one_by_one, b"", b"a", 16384),
        (united_line_by_line, b"", b"a", 16384),
        (sought_in_a_list, b"", b"a", 8192),
    ],
)
def test_what_is_quadratic_is_found(parser: Parser, before: bytes, repeated: bytes, largest: int) -> None:
    assert not is_linear(parser, lambda size: before + repeated * (size // len(repeated)) + b"!", largest)


@pytest.mark.parametrize(
    ("stars", "path"),
    [
        ("/a*b*c*d*/e", "/a" + "bcd" * 20_000),
        ("*a*a*a*a*b", "a" * 60_000),
        ("*ab*ab*ab*", "a" * 60_000),
        ("*", "/" * 60_000),
    ],
)
def test_a_path_is_matched_in_linear_time_whatever_the_stars(stars: str, path: str) -> None:
    assert is_linear(PathPattern(stars).matches, lambda size: path[:size], len(path))

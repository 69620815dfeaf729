"""A request's place in a trace, as W3C Trace Context spells it; what breaks its rules is none."""

import pytest

from oncegate.middleware.rules.headers.trace_context import TraceContext, parse_traceparent, trace_context

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
LINE = f"00-{TRACE}-{SPAN}-01".encode()


def test_its_parts_are_read() -> None:
    assert parse_traceparent(LINE) == TraceContext(TRACE, SPAN, 1)
    assert parse_traceparent(LINE[:-2] + b"02") == TraceContext(TRACE, SPAN, 2)


@pytest.mark.parametrize(("flags", "sampled"), [(b"00", False), (b"01", True), (b"02", False), (b"03", True)])
def test_the_last_bit_of_the_flags_says_whether_it_is_sampled(flags: bytes, sampled: bool) -> None:
    found = parse_traceparent(LINE[:-2] + flags)
    assert found is not None
    assert found.sampled is sampled


@pytest.mark.parametrize(
    "line", [b"cc" + LINE[2:], b"01" + LINE[2:] + b"-what-the-next-version-adds", b"fe" + LINE[2:] + b"-"]
)
def test_a_higher_version_is_read_as_this_one(line: bytes) -> None:
    assert parse_traceparent(line) == TraceContext(TRACE, SPAN, 1)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        LINE[:-1],
        LINE + b"0",
        LINE + b"-",
        LINE + b"-more",
        b"01" + LINE[2:] + b"more",
        b"ff" + LINE[2:],
        LINE.upper(),
        LINE.replace(b"-", b"_"),
        b"00-" + b"0" * 32 + LINE[35:],
        LINE[:36] + b"0" * 16 + LINE[52:],
        b"00-" + b"g" * 32 + LINE[35:],
        b" " + LINE,
        LINE + b"\n",
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_malformed_is_none(line: bytes) -> None:
    assert parse_traceparent(line) is None


def test_of_several_none_counts() -> None:
    one = (b"traceparent", b" " + LINE + b"\t")
    assert trace_context([(b"host", b"a"), one]) == TraceContext(TRACE, SPAN, 1)
    assert trace_context([one, one]) is None
    assert trace_context([(b"host", b"a")]) is None

"""HTTP fields: what their names and values may hold, and which of them, and which bodies, are in no stored response."""
# Compiled: docs/decisions/0012-compiled.md

import re
from typing import Final

FIELD_NAME: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
"""The form of a field's or a method's name (RFC 9110 section 5.6.2)."""
FIELD_VALUE: Final = r"[\t\x20-\x7e\x80-\xff]*"
"""The form of a field's value (RFC 9110 section 5.5): no CR, LF or NUL."""
is_field_name: Final = re.compile(FIELD_NAME.encode()).fullmatch
is_field_value: Final = re.compile(FIELD_VALUE.encode("latin-1")).fullmatch
HOP_BY_HOP: Final[frozenset[bytes]] = frozenset(
    b"connection proxy-connection keep-alive te trailer transfer-encoding upgrade".split()
    + b"proxy-authenticate proxy-authorization".split()
)
"""Never kept: replayed they would break a connection (RFC 9110 section 7.6.1). Trailers are not stored. Credentials for a proxy,
and a proxy's challenge, are meant for the next hop alone (section 11.7)."""
_USUAL: Final = (
    b"accept accept-encoding accept-language accept-ranges age allow authorization cache-control connection content-encoding "
    b"content-language content-length content-location content-range content-security-policy content-type cookie date etag "
    b"expect expires host idempotency-attempt idempotency-key if-match if-modified-since if-none-match if-unmodified-since "
    b"keep-alive last-modified location origin pragma prefer priority range referer retry-after sec-fetch-dest sec-fetch-mode "
    b"sec-fetch-site server set-cookie strict-transport-security te trailer traceparent tracestate transfer-encoding upgrade "
    b"upgrade-insecure-requests user-agent vary via www-authenticate x-api-key x-content-type-options x-correlation-id "
    b"x-forwarded-for x-forwarded-host x-forwarded-proto x-frame-options x-real-ip x-request-id"
).split()
IN_LOWER_CASE: Final = {spelled: name for name in _USUAL for spelled in (name, name.title())}
"""Usual names of fields, as they are spelled as a rule, and in lower case: one object for all requests, which knows its hash."""
RECURRING: Final[frozenset[bytes]] = frozenset(
    b"accept-ranges access-control-allow-credentials access-control-allow-headers access-control-allow-methods "
    b"access-control-allow-origin access-control-expose-headers allow cache-control connection content-encoding "
    b"content-language content-length content-security-policy content-type cross-origin-opener-policy "
    b"cross-origin-resource-policy date keep-alive permissions-policy pragma referrer-policy server "
    b"strict-transport-security transfer-encoding vary via x-content-type-options x-frame-options x-powered-by "
    b"x-xss-protection".split()
)
"""The fields of responses whose values come again with others, and are no secret."""
LONGEST_RECURRING: Final = 300
MOST_RECURRING: Final = 1000
"""Of lines of theirs, the longest and the most of which a process keeps what it has found out."""
SHORT_NUMBERS: Final = {b"%d" % number: number for number in range(1_000)}
"""Usual numbers, which compiled code takes long to make of digits."""
BODILESS: Final[frozenset[int]] = frozenset((204, 304))
"""The statuses of answers that never have a body (RFC 9110 section 6.4.1)."""


def fields_of(lines: bytes) -> list[tuple[bytes, bytes]]:
    """The fields that ``lines`` are, each behind a CRLF, as HTTP/1.1 sends them."""
    parts = [line.partition(b": ") for line in lines.split(b"\r\n")[1:]]
    return [(name, value) for name, _, value in parts]

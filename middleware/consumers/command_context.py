"""`CommandContext`: what the handler of a command gets beside its payload."""

from dataclasses import dataclass

from oncegate.middleware.rules.keys.key import key_line


@dataclass(frozen=True, slots=True)
class CommandContext:
    """A handler's knowledge of its command, besides the payload. What the request didn't have is empty.

    - ``key``: the caller's idempotency key: pass it on to whatever is called on the command's behalf (see `headers`).
    - ``record``: the record's id, fit for logs.
    - ``entry``: the id in the stream.
    - ``attempt``: counts from 1.
    - ``method``, ``target``, ``content_type``: those of the request, as they were sent.
    - ``route``: the pattern that the request matched.
    - ``correlation``: the request's ``X-Correlation-ID``, or else its ``X-Request-ID``.
    - ``traceparent``: the request's place in a trace (W3C Trace Context).
    - ``caller``: the digest of the scope's headers, which are unchecked unless something in front of the gateway did that.
    - ``request_headers``: the lines that travelled with the command, names in lower case: ``content-*``, the key's, those of
      ``forward_request_headers``.
    - ``aggregate``, ``sequence``: the id of what the command is about, and its number among the commands about that; ``None``
      where its route has no ``aggregate``.
    """

    key: str
    record: str
    entry: str
    attempt: int
    method: str
    target: str
    content_type: str = ""
    correlation: str = ""
    traceparent: str = ""
    route: str = ""
    caller: str = ""
    request_headers: tuple[tuple[str, str], ...] = ()
    aggregate: str = ""
    sequence: int | None = None

    def request_header(self, name: str) -> str:
        """The value of one of ``request_headers``, of several lines joined by commas; empty without one."""
        return ", ".join(value for found, value in self.request_headers if found == name.lower())

    @property
    def headers(self) -> dict[str, str]:
        """The fields to send along to a service that is called for this command: by the key, it can recognise a repetition."""
        fields = {
            "Idempotency-Key": key_line(self.key),
            "Idempotency-Attempt": str(self.attempt),
            "X-Correlation-ID": self.correlation,
            "traceparent": self.traceparent,
        }
        return {name: value for name, value in fields.items() if value}

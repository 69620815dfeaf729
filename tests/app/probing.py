"""What schemathesis can think of for each operation of a description, sent to a running server and held against it."""

from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

OF_THE_CONNECTION = ("connection", "content-length", "expect", "host", "transfer-encoding", "upgrade")
"""Header fields that HTTP has rules of its own for: what breaks them is answered before there is an operation."""


def probe(
    description: dict[str, Any],
    base: str,
    examples: int,
    headers: Sequence[str] = (),
    always: dict[str, str] | None = None,
) -> set[int]:
    """Calls every operation with what the description allows, and with what it doesn't: the statuses that came back.

    ``headers`` are set to one value in every other call, so that calls meet each other; those of ``always`` go with all of
    them. Raises where an answer is not as it is described.
    """
    import schemathesis  # seconds, which processes without these tests need not spend
    from schemathesis.specs.openapi import checks

    conformance = [
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_headers_conformance,
        checks.response_schema_conformance,
    ]
    statuses: set[int] = set()
    for found in schemathesis.openapi.from_dict(description).get_all_operations():
        operation = found.ok()  # type: ignore[union-attr]  # of a description that is wrong in itself: raise
        wrong = [schemathesis.GenerationMode.NEGATIVE] if operation.headers or operation.query or operation.body else []
        for mode in (schemathesis.GenerationMode.POSITIVE, *wrong):

            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(
                max_examples=examples,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def call(case: Any) -> None:
                for name in OF_THE_CONNECTION:
                    case.headers.pop(name, None)
                for fixed in ({}, dict.fromkeys(headers, "the-same")):
                    if fixed or not headers:
                        case.headers.update(fixed)
                    answer = case.call_and_validate(base_url=base, checks=conformance, headers=dict(always or {}))
                    statuses.add(answer.status_code)

            call()
    return statuses

"""Settings that take no name but their own: the error about another one has the nearest."""

import difflib
from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError


class StrictSettings(BaseModel):
    """Settings that have no other names than their own, and stay as they are. The error about another name has the nearest.

    ``True`` and ``False`` are no numbers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        fields = cls.model_fields
        faults = [
            InitErrorDetails(type=_fault(str(name), fields), loc=(str(name),), input=given[name])
            for name in given
            if name not in fields
        ]
        faults += [
            InitErrorDetails(type=_A_BOOL, loc=(name,), input=value)
            for name, value in given.items()
            if isinstance(value, bool) and name in fields and _is_number(fields[name].annotation)
        ]
        if faults:
            raise ValidationError.from_exception_data(
                cls.__name__, faults, hide_input=bool(cls.model_config.get("hide_input_in_errors"))
            )
        return given


_A_BOOL = PydanticCustomError("not_a_bool", "must be a number, not true or false")


def _is_number(annotation: Any) -> bool:
    return annotation in (int, float) or any(map(_is_number, get_args(annotation)))


def _fault(name: str, known: Iterable[str]) -> PydanticCustomError:
    return PydanticCustomError("unknown_setting", "unknown setting{nearest}", {"nearest": nearest(name, known)})


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error about the unknown ``name``: the one of ``known`` that is probably meant, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f", did you mean {close[0]}?" if close else ""

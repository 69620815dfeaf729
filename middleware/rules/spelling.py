"""Texts in settings that have a form: whoever writes another one is told which in words, not by an expression."""

import re
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


@dataclass(frozen=True, slots=True)
class Spelling:
    """A pattern that a text has to match as a whole, for ``Annotated[str, Spelling(...)]``; ``words`` come after "must be"."""

    pattern: str
    words: str

    def check(self, value: str) -> str:
        """``value``, if it is spelled so."""
        if re.fullmatch(self.pattern, value) is None:
            raise PydanticCustomError("spelling", "must be {words}", {"words": self.words})
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^({self.pattern})$"}

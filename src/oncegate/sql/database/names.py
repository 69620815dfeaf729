"""The names under which something is kept in a table: of an outbox, a sequence, a source, a projection."""

import re
from typing import Final

from oncegate.middleware.consumers.sql_interface import NAME

_NAME: Final = re.compile(NAME)


def check_name(what: str, name: object) -> str:
    """``name``. Raises ``ValueError`` for what is none; ``what`` says of what."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{what} has 1 to 64 letters, digits, '.', '_' and '-', not {name!r}")
    return name

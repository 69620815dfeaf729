"""Where the console's pages get what they show: the same objects that the API under the prefix has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oncegate.app.operators.audit import Author
from oncegate.app.operators.audit_lines import AuditLines
from oncegate.app.operators.database.changes import DatabaseChanges
from oncegate.app.operators.readiness import Readiness
from oncegate.app.operators.records.records import Records
from oncegate.app.operators.standing import Standing
from oncegate.app.telemetry.recent import RecentDecisions
from oncegate.app.telemetry.refusals import Refusals

if TYPE_CHECKING:
    from oncegate.app.operators.database.database import OperatorsDatabase
    from oncegate.app.operators.letters.dead_letters import Commands


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of what the pages show.

    ``recent`` are the decisions of this gateway, ``refusals`` whom it has refused, ``gauges`` numbers of the moment, by all its
    workers; ``policy`` is what is published about keys; ``streams`` are the commands of a stream, by its name; ``standing`` is
    how processes and the cache stand, and the settings in effect.
    """

    records: Records
    readiness: Readiness
    policy: Callable[[], dict[str, Any]]
    recent: RecentDecisions
    refusals: Refusals
    gauges: Callable[[], Mapping[str, int]]
    streams: "Mapping[str, Commands]"
    standing: Standing
    audit: AuditLines | None = None
    database: "OperatorsDatabase | None" = None
    """The consumers' one."""
    own_port: bool = False
    """Whether operators have a port of their own: then the console's address is not the one that requests go to."""


def database_of(sources: Sources) -> "OperatorsDatabase":
    """The consumers' database, of pages that are there where one is given. Raises ``LookupError``."""
    if sources.database is None:
        raise LookupError("no database is given")
    return sources.database


def changes_of(sources: Sources, author: Author) -> DatabaseChanges:
    """The changes there, made by ``author``."""
    return DatabaseChanges(database_of(sources), sources.audit, author)

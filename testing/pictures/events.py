"""What happens in a run, as the parties to it see it: noted once it has happened, and kept in that order."""

import threading
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Message:
    """What ``source`` sent to ``target``."""

    source: str
    target: str
    text: str
    bad: bool = False
    """Not what its receiver wishes for: drawn dashed."""


@dataclass(frozen=True)
class Act:
    """What ``party`` did, or what became of it. One that ``ends`` has no line from there on."""

    party: str
    text: str
    ends: bool = False
    bad: bool = False


Event = Message | Act


@dataclass
class Run:
    """A scenario: its title, who takes part, from left to right, and what has happened so far."""

    title: str
    parties: tuple[str, ...]
    events: list[Event] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, event: Event) -> None:
        """Keep ``event`` as the newest. Raises ``ValueError`` for a party that does not take part."""
        ends = (event.source, event.target) if isinstance(event, Message) else (event.party,)
        if unknown := set(ends) - set(self.parties):
            raise ValueError(f"{unknown} take no part in {self.title!r}")
        with self._lock:
            self.events.append(event)

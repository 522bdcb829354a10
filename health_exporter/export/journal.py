"""What has happened lately, in bounded memory, for a page that people read."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

_KEPT = 64
"""Newest entries: more than a person reads."""

_RANKS_NAMED = 8
"""Of one entry; a line of the page has no room for more."""

_LOOKED_BACK = 6
"""Newest entries that another of the same kind may join: a sick step often has several kinds."""

_NEAR_STEPS = 50
_NEAR_S = 60.0
"""Something that comes again so soon is the same trouble, and one line: a run whose loss is NaN at
every step must not push the rank that died before it off the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One event, or several of the same kind close together.

    Args:
        event: Name of the event, as in `events.jsonl`.
        kind: Kind of the anomaly or outage; "" for other events.
        first_time: Unix time of the first.
        last_time: Unix time of the last.
        first_step: Step of the first, where it has one.
        last_step: Step of the last.
        count: How many.
        ranks: The first ranks that it is of, without repetition.
        fields: What else the first of them said.
    """

    event: str
    kind: str
    first_time: float
    last_time: float
    first_step: int | None
    last_step: int | None
    count: int = 1
    ranks: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)

    def value(self) -> float | None:
        """The first of the judged values, if it is a finite number."""
        value = self.fields.get("value")
        return value if isinstance(value, float) and isfinite(value) else None


class Journal:
    """Takes events from any thread. `entries`, oldest first, is replaced and never changed."""

    def __init__(self) -> None:
        self.entries: tuple[Happening, ...] = ()
        self._lock = threading.Lock()

    def add(self, time: float, event: str, fields: Mapping[str, Any]) -> None:
        """An event with its fields, as they are written to `events.jsonl`."""
        step, rank = fields.get("step"), fields.get("rank")
        new = Happening(
            event=event,
            kind=str(fields.get("kind", "")),
            first_time=time,
            last_time=time,
            first_step=step,
            last_step=step,
            ranks=() if rank is None else (str(rank),),
            fields=fields,
        )
        with self._lock:
            entries = list(self.entries)
            for i in range(len(entries) - 1, max(-1, len(entries) - 1 - _LOOKED_BACK), -1):
                if _belong_together(entries[i], new):
                    entries[i] = _joined(entries[i], new)
                    break
            else:
                entries.append(new)
            self.entries = tuple(entries[-_KEPT:])


def _belong_together(old: Happening, new: Happening) -> bool:
    if (old.event, old.kind) != (new.event, new.kind) or new.event == "state":
        return False
    if new.first_time - old.last_time <= _NEAR_S:
        return True
    last, first = old.last_step, new.first_step
    return last is not None and first is not None and 0 <= first - last <= _NEAR_STEPS


def _joined(old: Happening, new: Happening) -> Happening:
    ranks = old.ranks + tuple(rank for rank in new.ranks if rank not in old.ranks)
    return replace(
        old,
        last_time=new.last_time,
        last_step=new.last_step,
        count=old.count + 1,
        ranks=ranks[:_RANKS_NAMED],
    )

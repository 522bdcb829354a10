"""Ranks that fall silent, on the clock of steps.

In synchronous training a dead rank stops all the others, so that no rank falls many steps behind:
this clock finds what fails in loosely coupled training, and the clock of seconds finds the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from health_exporter.core import argument
from health_exporter.core.anomaly import Anomaly

_KEPT_OUTAGES = 1_000  # newest; a run that lost more ranks than that reads the count


@dataclass(slots=True)
class StepOutage:
    """One silence of one rank.

    Args:
        rank: The rank.
        last_step: Last step that it reported.
        detected_at_step: Step at which it was flagged.
        recovered_at_step: Step that it reported after the silence; None while it lasts.
    """

    rank: str
    last_step: int
    detected_at_step: int
    recovered_at_step: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return {
            "rank": self.rank,
            "last_step": self.last_step,
            "detected_at_step": self.detected_at_step,
            "recovered_at_step": self.recovered_at_step,
        }


class StepLiveness:
    """Flags a rank that has reported no step for more than `threshold` steps, once per outage."""

    __slots__ = ("_flagged", "_last_seen", "_newest", "n_outages", "outages", "threshold")

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold
        self.outages: deque[StepOutage] = deque(maxlen=_KEPT_OUTAGES)
        self.n_outages = 0
        self._last_seen: dict[str, int] = {}
        self._newest = -1
        self._flagged: dict[str, StepOutage] = {}

    def begin_attempt(self) -> None:
        """Forget who was seen: a rank that does not come back was scaled away, it is not dead."""
        self._last_seen.clear()
        self._newest = -1

    def observe(self, rank: object, step: object) -> None:
        """Record that `rank` (a non-empty string or an integer) did `step`.

        Raises:
            TypeError: `rank` or `step` is of the wrong type.
            ValueError: `rank` is empty, or `step` is negative or not above the rank's last one.
        """
        name = rank if isinstance(rank, str) else str(argument.integer(rank, "rank"))
        if not name:
            raise ValueError("rank must not be empty, got ''")
        at = argument.integer(step, "step", minimum=0)
        previous = self._last_seen.get(name)
        if previous is not None and at <= previous:
            raise ValueError(f"step of rank {name!r} must be > {previous}, its last one, got {at}")
        self._last_seen[name] = at
        self._newest = max(self._newest, at)
        outage = self._flagged.pop(name, None)
        if outage is not None:
            outage.recovered_at_step = at

    def check(self, current_step: object) -> list[Anomaly]:
        """Newly dead ranks at `current_step`.

        Raises:
            TypeError: `current_step` is no integer.
            ValueError: A rank has already reported a later step.
        """
        now = argument.integer(current_step, "current_step", minimum=0)
        if now < self._newest:
            raise ValueError(
                f"current_step must be >= {self._newest}, which a rank has reported, got {now}"
            )
        silent_since = now - self.threshold
        found = []
        for rank, last in self._last_seen.items():
            if last < silent_since and rank not in self._flagged:
                outage = StepOutage(rank, last, now)
                self._flagged[rank] = outage
                self.outages.append(outage)
                self.n_outages += 1
                silence, threshold = float(now - last), float(self.threshold)
                found.append(Anomaly(last, "dead_rank", silence, threshold, None, now, rank))
        return found

    def state(self) -> list[dict[str, Any]]:
        """The outages so far; who was seen is a matter of one attempt and is not kept."""
        return [outage.as_dict() for outage in self.outages]

    def load(self, outages: Iterable[Mapping[str, Any]], n_outages: object) -> None:
        """Take over the outages of an earlier process; ones still open stay open.

        Raises:
            TypeError, ValueError: The outages are damaged; nothing has changed then.
        """
        loaded = [_outage(fields) for fields in outages]
        self.n_outages = argument.integer(n_outages, "n_outages", minimum=len(loaded))
        self.begin_attempt()
        self.outages = deque(loaded, maxlen=_KEPT_OUTAGES)
        self._flagged = {o.rank: o for o in loaded if o.recovered_at_step is None}


def _outage(fields: Mapping[str, Any]) -> StepOutage:
    outage = StepOutage(**fields)
    if not isinstance(outage.rank, str):
        raise TypeError(f"rank must be a string, got {outage.rank!r}")
    argument.integer(outage.last_step, "last_step", minimum=0)
    argument.integer(outage.detected_at_step, "detected_at_step", minimum=0)
    if outage.recovered_at_step is not None:
        argument.integer(outage.recovered_at_step, "recovered_at_step", minimum=0)
    return outage

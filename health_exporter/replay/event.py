"""What happened in a run, in order: runs of anomalies, restarts, launches."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from health_exporter.core import strict_json
from health_exporter.core.anomaly import Anomaly

# Anomalies of a kind with at most this many rows between them are one event: a person who looks at
# the curve sees one.
_JOINED_ROWS = 10

# A report is read by people; what is beyond is counted.
KEPT_EVENTS = 10_000

RESTART, LAUNCH = "restart", "launch"
"""Kinds of events that are no anomalies."""


@dataclass(slots=True, kw_only=True)
class Event:
    """Something that happened.

    Args:
        kind: A kind of anomaly, `restart` or `launch`.
        row: Number of its first row among the steps that were judged, from 0.
        first_step: Step at which it begins.
        last_step: Step at which it ends.
        line: Number of its first line in its file.
        file: Which of the files, from 0.
        time: Unix time of its first row, where the log has times.
        n: Anomalies in it.
        value: The value that is furthest from the baseline; what is no number is further than any.
        baseline: Baseline of that value.
        z_score: Its distance from the baseline in spreads.
        text: What else is to be said.
    """

    kind: str
    row: int
    first_step: int
    last_step: int
    line: int
    file: int
    time: float | None
    n: int = 1
    value: float | None = None
    baseline: float | None = None
    z_score: float | None = None
    text: str = ""

    def as_dict(self) -> dict[str, object]:
        """The fields by name, as strict JSON; those that are unknown left out."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {
            name: strict_json.encode(value)
            for name, value in fields.items()
            if value is not None and value != ""
        }


class Events:
    """Collects events as the steps are judged; the newest `KEPT_EVENTS` of them.

    Attributes:
        listed: The events in order.
        n: All that there were.
    """

    def __init__(self) -> None:
        self.listed: list[Event] = []
        self.n = 0
        self._open: dict[str, tuple[Event, int]] = {}

    def happened(self, event: Event) -> None:
        """A restart or a launch: what comes after is another event than what came before."""
        self._open.clear()
        self._add(event)

    def anomalies(
        self, found: list[Anomaly], row: int, line: int, file: int, time: float | None
    ) -> None:
        """The anomalies of one step."""
        for anomaly in found:
            known = self._open.get(anomaly.kind)
            if known is not None and row - known[1] <= _JOINED_ROWS:
                event = known[0]
                event.n += 1
                event.last_step = anomaly.detected_at_step
                if _is_further(anomaly, event):
                    event.value, event.baseline = anomaly.value, anomaly.baseline
                    event.z_score = anomaly.z_score
            else:
                event = Event(
                    kind=anomaly.kind,
                    row=row,
                    first_step=anomaly.step,
                    last_step=anomaly.detected_at_step,
                    line=line,
                    file=file,
                    time=time,
                    value=anomaly.value,
                    baseline=anomaly.baseline,
                    z_score=anomaly.z_score,
                )
                self._add(event)
            self._open[anomaly.kind] = (event, row)

    def _add(self, event: Event) -> None:
        self.n += 1
        self.listed.append(event)
        if len(self.listed) > 2 * KEPT_EVENTS:
            del self.listed[:-KEPT_EVENTS]


def _is_further(anomaly: Anomaly, event: Event) -> bool:
    if not isfinite(anomaly.value):
        return event.value is None or isfinite(event.value)
    return (anomaly.z_score or 0.0) > (event.z_score or 0.0)

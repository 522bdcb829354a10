"""The book of the ranks' outages: what the receipt lists, and what is told of each."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from health_exporter.core.anomaly import Anomaly
from health_exporter.core.standing import Outage, Standing
from health_exporter.runtime.judge import Judge
from health_exporter.runtime.receipt import ReceiptWriter
from health_exporter.runtime.report import iso_time

log = logging.getLogger(__name__)

_KEPT_OUTAGES = 1_000
"""Newest outages listed in the report; all are counted by the anomalies' counters."""


class OutageBook:
    """Written by one background thread; read by any.

    Args:
        judge: Counts each outage as an anomaly.
        receipts: Gets an event when one begins and when it ends.
        wall: Unix time in seconds.
    """

    def __init__(
        self, judge: Judge, receipts: ReceiptWriter, *, wall: Callable[[], float] = time.time
    ) -> None:
        self._judge = judge
        self._receipts = receipts
        self._wall = wall
        self._listed: deque[dict[str, Any]] = deque(maxlen=_KEPT_OUTAGES)

    def load(self, outages: Iterable[dict[str, Any]]) -> None:
        """Go on from what `listed` gave to an earlier process."""
        self._listed.extend(outages)

    def listed(self) -> list[dict[str, Any]]:
        """The outages as the receipt has them, oldest first."""
        return [dict(outage) for outage in list(self._listed)]

    def update(self, standing: Standing) -> None:
        """Enter the outages that have begun and that have ended; tell who has never come."""
        for outage in standing.begun:
            self._begin(outage, standing)
        for outage in standing.ended:
            self._end(outage)
        for rank in standing.never_came:
            log.warning("rank %d of %d has never come", rank, standing.world_size)
            self._receipts.event("missing_rank", rank=rank)

    def _begin(self, outage: Outage, standing: Standing) -> None:
        silent_s = 0.0
        if outage.rank is not None:
            row = standing.row(outage.rank)
            silent_s = row.silent_s if outage.kind == "dead_rank" else row.still_s
        now_at = max(self._judge.view.step or 0, outage.step, 0)
        rank = None if outage.rank is None else str(outage.rank)
        step = max(outage.step, 0)
        anomaly = Anomaly(step, outage.kind, silent_s, None, None, now_at, rank)
        place = {"host": outage.host, "phase": outage.phase, "where": outage.where}
        log.warning(
            "%s: rank %s on %s, last step %d%s",
            outage.kind,
            "unknown" if rank is None else rank,
            outage.host or "?",
            outage.step,
            f", at {outage.where}" if outage.where else "",
        )
        number = self._judge.add_anomaly(anomaly)
        self._listed.append(
            {
                "kind": outage.kind,
                "rank": rank,
                **place,
                "last_step": outage.step,
                "detected_at_step": now_at,
                "detected_at": iso_time(self._wall()),
                "ended_at": None,
                "ending": None,
            }
        )
        self._receipts.event("anomaly", number=number, **anomaly.as_dict(), **place)
        self._receipts.request()

    def _end(self, outage: Outage) -> None:
        rank = None if outage.rank is None else str(outage.rank)
        for listed in reversed(self._listed):
            if (listed["kind"], listed["rank"], listed["ended_at"]) == (outage.kind, rank, None):
                listed.update(ended_at=iso_time(self._wall()), ending=outage.ending)
                break
        self._receipts.event(
            "outage_end", kind=outage.kind, rank=rank, host=outage.host, ending=outage.ending
        )

"""How an exporter ends: a last judgement, a goodbye, the receipt, and a wait to be seen.

`runtime/ending.py` hears that the process ends, and calls this for every exporter in it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from health_exporter.export.complaint import Complaints
from health_exporter.runtime.critical import Critical, comes_from_handler
from health_exporter.runtime.ending import ENDING
from health_exporter.runtime.this_rank import ThisRank

log = logging.getLogger(__name__)

_END_S = 10.0
"""SIGTERM waits this long for an end that is under way in another thread: the last receipt takes at
most half of it."""


class JudgePending(Protocol):
    """Judges the steps that are pending: all, or those whose values surely have arrived."""

    def __call__(self, *, wait: bool) -> None: ...


class ExporterEnd:
    """Ends one exporter once, whoever asks first: the trainer, or the end of the process.

    Attributes:
        closed: All parts have stopped.

    Args:
        rank: What is ended.
        critical: Where the main thread is busy with the exporter.
        judge_pending: Called first.
        complaints: Told what has gone wrong.
    """

    def __init__(
        self,
        rank: ThisRank,
        critical: Critical,
        judge_pending: JudgePending,
        complaints: Complaints,
    ) -> None:
        self.closed = False
        self._rank = rank
        self._critical = critical
        self._judge_pending = judge_pending
        self._complaints = complaints
        self._failed = False
        self._begun = threading.Lock()  # never given back
        self._ended = threading.Event()

    def finish(self, status: str, error: BaseException | None) -> None:
        """See `HealthExporter.finish`; called by the end of the process too, from any thread."""
        if self._rank.inert:
            return
        if not self._begun.acquire(blocking=False):
            if status == "terminated":  # then the process goes, and the receipt should be whole
                self._hurry_if_finished()
                linger_s = self._rank.settings.linger_s
                self._ended.wait(_END_S + (linger_s if self._failed else 0.0))
            return
        self._failed = status == "failed"
        with self._critical:
            self._finish_once(status, error)

    def _finish_once(self, status: str, error: BaseException | None) -> None:
        try:
            self._end(status, error)
        except Exception as problem:
            if comes_from_handler(problem):
                raise
            self._complaints.warn("end", "the run's end is incomplete", problem, trace=True)
        finally:
            self.closed = True
            ENDING.remove(self)
            self._rank.close()
            self._ended.set()

    def _end(self, status: str, error: BaseException | None) -> None:
        began = time.monotonic()
        rank = self._rank
        # Only after a normal end is the device waited for: after any other it may hang for good,
        # as in a collective of which a rank is gone.
        try:
            self._judge_pending(wait=status == "finished")
        except Exception as problem:  # noqa: BLE001  # counted already; the receipt matters more
            log.debug("the last steps are not judged: %r", problem)
        if rank.settings.linger_s:  # 0 is for those in a hurry
            rank.watch.look_for_cause(status)
        rank.error = error if status == "failed" else None
        rank.own_state = status
        rank.watch.say_goodbye(status)
        if rank.run is not None:
            rank.run.finish(status, error)
        if rank.push is not None:
            rank.push.begin_flush()
        # A scrape could see the end since `finish` set the state; a slow disk must not make the
        # end longer than a launcher's grace.
        rank.server.linger(max(0.0, rank.settings.linger_s - (time.monotonic() - began)))
        if self._failed and ENDING.terminated:  # whose effect comes before Python's own words
            log.error("the run had failed before SIGTERM came", exc_info=error)
        if rank.push is not None:
            rank.push.wait_flushed()

    def defer(self, end: Callable[[], None]) -> bool:
        """Have `end` called once what the main thread does here is whole; False if it is."""
        if self._begun.locked():
            self._hurry_if_finished()
        return self._critical.defer(end)

    def _hurry_if_finished(self) -> None:
        """The first SIGTERM ends the wait of a run that had ended well, and of no other.

        When a rank dies, the others fail, and a moment later their launcher sends SIGTERM to all:
        nobody would ever have seen who died.
        """
        if not self._failed:
            self.hurry()

    def hurry(self) -> None:
        """Wait neither for a last scrape nor for a last push."""
        self._rank.hurry()

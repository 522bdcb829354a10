"""Watching the ranks: each tells how it is, and rank 0 judges who lives and who is waited for."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from health_exporter.core.beat import Beat
from health_exporter.core.standing import Standing
from health_exporter.core.verdict import RankBoard
from health_exporter.export.complaint import Complaints
from health_exporter.runtime.beat import BeatExchange
from health_exporter.runtime.identity import Identity
from health_exporter.runtime.progress import Progress
from health_exporter.runtime.receipt import run_folder
from health_exporter.runtime.registration import Registration
from health_exporter.runtime.settings import Settings
from health_exporter.runtime.stack import dump_stacks, position
from health_exporter.runtime.target import Target

log = logging.getLogger(__name__)

_STILL_S = 1.0
"""A training thread that has been still for longer is asked where it is: a look at its frames,
too cheap to matter, but pointless while it moves."""

_CAUSE_S = 1.0
"""When it is ended early, rank 0 waits at most this long for who may have died before: a death on
its own host is known within 0.6 s."""

_GOODBYES_S = 2.0
"""At the end rank 0 waits this long for the others' goodbyes, so that the receipt has them."""


class Watched(Protocol):
    """The exporter, as far as its rank is watched."""

    @property
    def settings(self) -> Settings: ...
    @property
    def identity(self) -> Identity: ...
    @property
    def state(self) -> str: ...
    @property
    def address(self) -> str: ...
    def stuck_for_s(self) -> float | None: ...


class Watch:
    """One rank's beats, and on rank 0 the judgement of all.

    Args:
        watched: The exporter.
        progress: What the training thread has done.
        environ: Environment variables, for the job's store.
        on_standing: On rank 0, called after each judgement, in a background thread.
        monotonic: Seconds.
    """

    def __init__(
        self,
        watched: Watched,
        progress: Progress,
        environ: Mapping[str, str],
        *,
        on_standing: Callable[[Standing], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        settings, identity = watched.settings, watched.identity
        self._watched = watched
        self._progress = progress
        self._on_standing = on_standing
        self._monotonic = monotonic
        self._complaints = Complaints(log)
        self._dumped = False
        self._registration = Registration(settings, identity, any_missing=self._any_missing)
        self._board = RankBoard(
            identity.world_size,
            beat_timeout_s=settings.beat_timeout_s,
            startup_timeout_s=settings.startup_timeout_s,
            beat_interval_s=settings.beat_interval_s,
            now=monotonic(),
        )
        self.standing: Standing | None = None
        self._judged = threading.Event()
        self._exchange = BeatExchange(
            rank=identity.rank,
            world_size=identity.world_size,
            run=settings.run,
            attempt=identity.attempt,
            make_beat=self._make_beat,
            on_beats=self._on_beats,
            on_gone=self._board.confirm_gone,
            overdue=self._board.overdue,
            beat_interval_s=settings.beat_interval_s,
            beat_timeout_s=settings.beat_timeout_s,
            environ=environ,
        )

    def start(self) -> None:
        """Begin to beat."""
        self._registration.start(self._watched.address, self._watched.state)
        self._exchange.start()

    @property
    def connected(self) -> bool | None:
        """Whether the ranks' store answers; None where there is none."""
        return self._exchange.connected if self._watched.identity.world_size > 1 else None

    @property
    def registered(self) -> Sequence[Target]:
        """On rank 0: the targets that ranks have left on disk."""
        return self._registration.found

    def _any_missing(self) -> bool:
        standing = self.standing
        return standing is None or standing.counts["missing"] > 0

    def look_for_cause(self, state: str) -> None:
        """Before rank 0 ends early, hear who has died: that is often why, and its last word tells.

        A launcher sends SIGTERM to all when a rank dies, and collectives fail then, both at once.
        """
        alone = self._watched.identity.rank != 0 or not self.connected
        if alone or state not in ("terminated", "failed"):
            return
        deadline = self._monotonic() + _CAUSE_S
        while (standing := self.standing) is not None:
            counts = standing.counts
            others = counts["alive"] + counts["stuck"] - 1
            left_s = deadline - self._monotonic()
            if counts["dead"] or others <= 0 or left_s <= 0:
                return
            self._judged.clear()
            self._judged.wait(min(0.1, left_s))

    def say_goodbye(self, state: str) -> None:
        """Tell the others that this rank ends; on rank 0, hear who else does."""
        deadline = self._monotonic() + _GOODBYES_S
        while self._exchange.say_goodbye(state) and self._watched.identity.rank == 0:
            standing = self.standing
            if standing is None or state != "finished" or self._monotonic() > deadline:
                return
            if not standing.counts["alive"] + standing.counts["stuck"]:
                return
            self._judged.clear()
            self._judged.wait(0.1)

    def close(self) -> None:
        """Stop beating."""
        self._registration.close(self._watched.state)
        self._exchange.close()

    def _make_beat(self) -> Beat:
        watched, progress = self._watched, self._progress
        mark = progress.mark
        still_s = progress.still_s
        self._look_if_stuck()
        return Beat(
            rank=watched.identity.rank,
            host=watched.identity.host,
            address=watched.address,
            pid=os.getpid(),
            beats=0,
            progress=mark.n,
            step=-1 if mark.step is None else mark.step,
            phase=progress.current_phase,
            state=watched.state,
            still_s=still_s,
            timeout_s=progress.timeout_s,
            where=position(progress.thread_id) if still_s > _STILL_S else "",
            marks=progress.marks,
        )

    def _look_if_stuck(self) -> None:
        if self._watched.stuck_for_s() is None:
            self._dumped = False
            return
        if self._dumped:
            return
        self._dumped = True  # once per outage, also if it fails
        settings, rank = self._watched.settings, self._watched.identity.rank
        try:
            path = dump_stacks(run_folder(settings.receipt_dir, settings.run), rank)
        except OSError as error:
            self._complaints.warn("stacks", "stacks could not be written", error)
        else:
            log.warning(
                "rank %d makes no progress; the stacks of its threads are in %s", rank, path
            )

    def _on_beats(self, beats: Sequence[Beat], connected: bool) -> None:
        now = self._monotonic()
        self._board.observe(beats, now, connected=connected)
        self.standing = self._board.judge(now)
        self._on_standing(self.standing)
        self._judged.set()

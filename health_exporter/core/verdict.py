"""Which ranks live, stand still, are gone or have gone, judged by rank 0.

Two clocks tell it. A rank's *beat* shows that its process lives; its *progress*, which only the
training thread moves, that it trains. How long a beat is overdue is measured on rank 0's own
monotonic clock, from when the beat last changed; how long a rank has stood still, the rank itself
measures, on its own. No two hosts' clocks are ever compared.

A verdict wakes a person, so it waits wherever an innocent explanation is left:

- A rank stands still only by its own word. Nothing is concluded about a rank that has fallen
  silent until its silence has lasted for the whole timeout, or its process is known to be gone.
- Ranks wait for each other. While a rank is silent, dead, or has gone, or (before the first step)
  has not come yet, those that stopped with it are not accused; nor while a rank does something
  that may take longer, such as a checkpoint, within its own limit.
- Time in which rank 0 did not look (it was suspended, or its store was away) counts for nobody.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from types import MappingProxyType

from health_exporter.core.beat import GOODBYES, LEFT, Beat
from health_exporter.core.culprit import Surroundings, common_place, culprits
from health_exporter.core.known_rank import KnownRank
from health_exporter.core.standing import (
    MAX_SUSPECTS,
    STATUSES,
    JudgedRank,
    Outage,
    Standing,
    Suspect,
)
from health_exporter.core.suspicion import suspects

__all__ = ["Beat", "Outage", "RankBoard", "Standing", "Suspect"]

_SLOW_PHASES = frozenset({"checkpoint", "eval"})
"""Here native code may hold the interpreter's lock, and with it the beat, for long."""

_LONG_BEATS = 4.0
"""`long_beat_timeout_s` in `beat_timeout_s`: 120 s at the default of 30 s."""

_OVERDUE_BEATS = 2.0
"""Intervals without a change after which a beat is overdue: writer and reader are not in step, so
that one interval without a change is ordinary."""


class RankBoard:
    """What rank 0 knows of all ranks of one attempt. Not thread-safe.

    Args:
        world_size: Ranks in the job.
        beat_timeout_s: A rank whose beat has not changed for longer is dead.
        long_beat_timeout_s: The same in `checkpoint`, `eval` and before the first step; None: four
            times `beat_timeout_s`.
        startup_timeout_s: A rank that has not come by then is a suspect.
        beat_interval_s: Seconds between two beats.
        now: Rank 0's monotonic seconds.
    """

    def __init__(
        self,
        world_size: int,
        *,
        beat_timeout_s: float = 30.0,
        long_beat_timeout_s: float | None = None,
        startup_timeout_s: float = 600.0,
        beat_interval_s: float = 5.0,
        now: float,
    ) -> None:
        if long_beat_timeout_s is None:
            long_beat_timeout_s = _LONG_BEATS * beat_timeout_s
        self._beat_timeout_s = beat_timeout_s
        self._long_beat_timeout_s = max(beat_timeout_s, long_beat_timeout_s)
        self._startup_timeout_s = startup_timeout_s
        self._overdue_s = min(_OVERDUE_BEATS * beat_interval_s, beat_timeout_s)
        self._most_watched_s = _OVERDUE_BEATS * beat_interval_s
        self._ranks = [KnownRank() for _ in range(world_size)]
        self._now = now
        self._watched = 0.0  # seconds in which rank 0 was looking
        self._anew = 0.0  # watched seconds at which silence began to count again
        self._connected = True
        self._standstill: Outage | None = None  # of all ranks, with none to blame
        self._late = False  # the time to come has run out
        self._overdue: list[Beat] = []
        self._begun: list[Outage] = []
        self._ended: list[Outage] = []

    def observe(self, beats: Iterable[Beat], now: float, *, connected: bool = True) -> None:
        """Take in what was read; beats that have not changed, and unknown ranks, are fine.

        Args:
            beats: Any number of ranks' newest beats.
            now: Rank 0's monotonic seconds.
            connected: Whether the others' beats could be read. While they cannot, nobody's silence
                counts, and when they can again, everybody's counts from then.
        """
        self._advance(now)
        if connected and not self._connected:
            self._anew = self._watched
        self._connected = connected
        ranks, watched = self._ranks, self._watched
        for beat in beats:
            if not 0 <= beat.rank < len(ranks):
                continue  # of a larger attempt before this one
            known = ranks[beat.rank]
            last = known.beat
            # A process that took over from another counts its beats from the start: any change,
            # in either direction, is a sign of life.
            if (
                last is None
                or last.beats != beat.beats
                or last.pid != beat.pid
                or last.host != beat.host
            ):
                if beat.said_goodbye and (last is None or not last.said_goodbye):
                    known.left_at = now  # a goodbye may be said again, as rank 0's is
                known.beat = beat
                known.changed_at = watched
                known.read_at = now
                known.dead = False

    def confirm_gone(self, beat: Beat) -> None:
        """The process that sent `beat` is known to exist no more: nothing has to be waited for.

        It has no effect on a process that said goodbye, or of which a later beat is read.
        """
        if 0 <= beat.rank < len(self._ranks):
            self._ranks[beat.rank].proof = (beat.pid, beat.beats)

    def overdue(self) -> Sequence[Beat]:
        """Last beats of the ranks that were silent, but not yet dead, at the last judgement."""
        return tuple(self._overdue)

    def judge(self, now: float) -> Standing:
        """How the ranks stand, and what is new since the judgement before."""
        self._advance(now)
        counts = dict.fromkeys(STATUSES, 0)
        rows: list[JudgedRank] = []
        self._overdue = []
        stuck: list[KnownRank] = []
        watched = self._watched
        for known in self._ranks:
            silent_s = watched - max(known.changed_at, self._anew)
            status = self._status(known, silent_s, now)
            counts[status] += 1
            rows.append((status, known.beat, silent_s))
            if status == "stuck":
                stuck.append(known)
                if known.stuck_at is None:
                    known.stuck_at = watched
            else:
                known.stuck_at = None
                known.waited_at = -math.inf
            if known.outage is not None or status == "dead":
                self._update_outage(known, status, now)
        never_came = self._never_came(counts["missing"])
        waiting = self._accuse(stuck, rows, now) if stuck else False
        if stuck and any(s == "alive" and b and b.phase in _SLOW_PHASES for s, b, _ in rows):
            self._excuse(counts, rows)
        if self._standstill is not None and not stuck:
            ending = "recovered" if counts["alive"] else "died" if counts["dead"] else "goodbye"
            self._ended.append(_ended(self._standstill, now, ending))
            self._standstill = None
        return self._standing(counts, rows, never_came, waiting=waiting)

    def _advance(self, now: float) -> None:
        """Move the clock of watched time: a long pause of rank 0's own counts as a short one."""
        gap, self._now = now - self._now, now
        if self._connected:
            self._watched += min(gap, self._most_watched_s)

    def _status(self, known: KnownRank, silent_s: float, now: float) -> str:
        beat = known.beat
        if beat is None:
            return "missing"
        if beat.state in GOODBYES:
            return "finished"
        if not known.dead and (silent_s > self._overdue_s or known.proof is not None):
            slow = beat.step < 0 or beat.phase in _SLOW_PHASES
            limit_s = self._long_beat_timeout_s if slow else self._beat_timeout_s
            if silent_s > limit_s or known.is_proved_gone():
                known.dead = True
                known.left_at = now
            elif silent_s > self._overdue_s:
                self._overdue.append(beat)
        if known.dead:
            return "dead"
        return "stuck" if beat.still_s > beat.timeout_s else "alive"

    def _update_outage(self, known: KnownRank, status: str, now: float) -> None:
        outage, beat = known.outage, known.beat
        assert beat is not None  # a rank that never came has no outage
        if outage is not None:
            dead = outage.kind == "dead_rank"
            if status == ("dead" if dead else "stuck"):
                return
            ending = {"finished": "goodbye", "dead": "died"}.get(status, "recovered")
            self._ended.append(_ended(outage, now, ending))
            known.outage = None
        if status == "dead":
            known.outage = self._begin("dead_rank", beat, now)

    def _begin(self, kind: str, beat: Beat, now: float) -> Outage:
        outage = Outage(kind, beat.rank, beat.host, beat.step, beat.phase, beat.where, now)
        self._begun.append(outage)
        return outage

    def _never_came(self, n_missing: int) -> tuple[int, ...]:
        """Ranks that are late now and were not before."""
        if self._late or self._watched <= self._startup_timeout_s:
            return ()
        self._late = True
        if not n_missing:
            return ()
        return tuple(rank for rank, known in enumerate(self._ranks) if known.beat is None)

    def _accuse(self, stuck: Sequence[KnownRank], rows: list[JudgedRank], now: float) -> bool:
        """Begin the outages of those who are to blame.

        Returns:
            Whether some of the others wait for a rank that has left.
        """
        blamed = self._standstill is not None or any(known.outage is not None for known in stuck)
        surroundings = self._surroundings(rows)
        waiting = undecided = False
        together: list[Beat] = []
        for known in stuck:
            if known.outage is not None or known.beat is None:
                continue
            stopped_at = known.read_at - known.beat.still_s
            why = surroundings.explain(known.beat, stopped_at, known.stuck_at or 0.0)
            # A rank that waited for another's checkpoint goes on a little later than that one, and
            # is known to a little later still.
            timeout_s = known.beat.timeout_s
            if surroundings.first_moved_at <= stopped_at + timeout_s / 2:
                known.waited_at = self._watched
            elif why == "alone" and self._watched <= known.waited_at + timeout_s:
                why = "undecided"
            if why == "alone":
                known.outage = self._begin("stuck_rank", known.beat, now)
            elif why == "together":
                together.append(known.beat)
            waiting |= why == "waiting"
            undecided |= why == "undecided"
        if together and not undecided and not blamed:
            self._blame(together, now)
        return waiting

    def _excuse(self, counts: dict[str, int], rows: list[JudgedRank]) -> None:
        """Ranks that wait while another is in a checkpoint or an evaluation live: it may be long.

        Their own timeouts do not know of it, where only that one has marked the phase.
        """
        for rank, (known, (status, beat, silent_s)) in enumerate(
            zip(self._ranks, tuple(rows), strict=True)
        ):
            if status == "stuck" and known.outage is None:
                counts["stuck"] -= 1
                counts["alive"] += 1
                rows[rank] = ("alive", beat, silent_s)

    def _surroundings(self, rows: list[JudgedRank]) -> Surroundings:
        """What the ranks that stand still may be waiting for."""
        silent = {beat.rank for beat in self._overdue}
        silent_since = min((self._ranks[rank].changed_at for rank in silent), default=math.inf)
        first_moved_at, left_at = math.inf, -math.inf
        n_missing = 0
        for rank, (known, (status, beat, _)) in enumerate(zip(self._ranks, rows, strict=True)):
            if beat is None:
                n_missing += 1
            elif status == "alive" and rank not in silent:
                # One that has not done a step yet has not gone on without the others: it has come.
                # Nor has one whose progress is within an evaluation of its own.
                goes_on = beat.step >= 0 and beat.phase not in _SLOW_PHASES
                moved_at = known.read_at - beat.still_s if goes_on else -math.inf
                first_moved_at = min(first_moved_at, moved_at)
            elif status == "dead" or beat.state in LEFT:
                left_at = max(left_at, known.left_at)
        return Surroundings(silent, silent_since, first_moved_at, left_at, n_missing)

    def _blame(self, together: Sequence[Beat], now: float) -> None:
        """All stand still, none has left: whom do they wait for?"""
        found = culprits(together)
        for beat in found:
            self._ranks[beat.rank].outage = self._begin("stuck_rank", beat, now)
        if not found:
            step = min(beat.step for beat in together)
            where = common_place(together)
            self._standstill = Outage("stuck_rank", None, "", step, "", where, now)
            self._begun.append(self._standstill)

    def _standing(
        self,
        counts: dict[str, int],
        rows: list[JudgedRank],
        never_came: tuple[int, ...],
        *,
        waiting: bool,
    ) -> Standing:
        found = suspects(
            self._ranks,
            rows,
            late=self._late,
            waiting=waiting,
            standstill=self._standstill is not None,
        )
        goodbyes = Counter(b.state for s, b, _ in rows if b is not None and s == "finished")
        begun, ended = tuple(self._begun), tuple(self._ended)
        self._begun, self._ended = [], []
        return Standing(
            world_size=len(rows),
            counts=MappingProxyType(counts),
            goodbyes=MappingProxyType(dict(goodbyes)),
            suspects=tuple(found[:MAX_SUSPECTS]),
            n_suspects=len(found),
            begun=begun,
            ended=ended,
            never_came=never_came,
            _ranks=tuple(rows),
        )


def _ended(outage: Outage, now: float, ending: str) -> Outage:
    return dataclasses.replace(outage, ended_s=now, ending=ending)

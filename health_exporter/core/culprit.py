"""Why a rank stands still, and of ranks that all do, those that the others wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from typing import NamedTuple

from health_exporter.core.beat import Beat


class Surroundings(NamedTuple):
    """What else is going on while some ranks stand still.

    Args:
        silent: Ranks whose beat is overdue, and who are not dead yet.
        silent_since: When the first of them was last heard, in seconds of the clock of `stuck_at`.
        first_moved_at: Of the ranks that are neither silent nor stuck, the earliest last progress,
            in seconds of the clock of `stopped_at`; minus infinity if one of them has done no step
            yet, infinity if there is no such rank.
        left_at: When a rank last died or left in the middle of the work, on the same clock; minus
            infinity if none has.
        n_missing: Ranks that have not come yet.
    """

    silent: Set[int]
    silent_since: float
    first_moved_at: float
    left_at: float
    n_missing: int

    def explain(self, beat: Beat, stopped_at: float, stuck_at: float) -> str:
        """Why the rank of `beat` stands still.

        Args:
            beat: Its last word.
            stopped_at: Its last progress.
            stuck_at: When its time was first found to have run out.

        Returns:
            `undecided`, `alone` (the others go on), `waiting` (for one that has left or has not
            come) or `together` (with all the others, and none of them has left).
        """
        # A silent rank will soon be dead or back, and this one may have waited for it.
        if beat.rank in self.silent or self.silent_since < stuck_at:
            return "undecided"
        # One that does something long may be what this one waits for, within its own limit. Once
        # all of them have moved after this one's time ran out, they do not wait for each other.
        if self.first_moved_at <= stopped_at + beat.timeout_s:
            return "undecided"
        if self.first_moved_at < float("inf"):
            return "alone"
        # A rank that trained on for long after another left does not need it, and one that has
        # done a step does not wait for one that never came.
        if stopped_at <= self.left_at + beat.timeout_s or (self.n_missing and beat.step < 0):
            return "waiting"
        return "together"


def culprits(stuck: Sequence[Beat]) -> list[Beat]:
    """Those of `stuck` to blame; empty when nothing tells them apart.

    Ranks that run the same program wait in a collective for the one that has not come to it: it
    has done fewer steps, or has marked fewer phases of the same step. Where that does not single
    out fewer than half, the one that waits for nobody is in another place of the source than the
    many that wait.
    """
    if len(stuck) == 1:
        return list(stuck)
    lowest = min((beat.step, beat.marks) for beat in stuck)
    behind = [beat for beat in stuck if (beat.step, beat.marks) == lowest]
    if 2 * len(behind) < len(stuck):
        return behind
    elsewhere = _elsewhere(behind)
    if elsewhere:
        return elsewhere
    return behind if len(behind) < len(stuck) else []


def common_place(stuck: Sequence[Beat]) -> str:
    """Where most of them are; "" if none of them says."""
    places = Counter(beat.where for beat in stuck if beat.where)
    return places.most_common(1)[0][0] if places else ""


def _elsewhere(beats: Sequence[Beat]) -> list[Beat]:
    """Those in another place than most; empty unless they are fewer than half.

    A rank that does not say where it is counts for neither side.
    """
    common = common_place(beats)
    known = [beat for beat in beats if beat.where]
    others = [beat for beat in known if beat.where != common]
    return others if 2 * len(others) < len(known) else []

"""Why a rank stands still, and of ranks that all do, those that the others wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence, Set
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
    has done fewer steps, or has marked fewer phases of the same step. Few that are behind are
    those, unless it shows that not every rank marks the same phases, as where only some load data.
    Else it is decided by where in the source each rank is, and then by what it says it does.
    """
    n = len(stuck)
    slow = _lowest(stuck, lambda beat: beat.step)
    behind = _lowest(slow, lambda beat: beat.marks)
    if len(behind) < n:
        if 2 * len(behind) < n and (len(behind) == len(slow) or not _outdone(behind, slow, n)):
            return behind
        # Many that are behind, and alone in their data, do not wait: who waits has left it.
        if behind == [beat for beat in slow if beat.phase == "data"]:
            return _elsewhere(behind, stuck) or behind
    elif n == 1:
        return behind
    loading = _busy_alone(slow, {"data"})
    apart = _elsewhere(slow)
    if apart:
        load = {beat.rank for beat in loading}
        return [beat for beat in apart if beat.rank in load] or apart
    if loading and 2 * len(loading) <= n:
        return loading
    # Half of them may well be in a collective that is part of a checkpoint.
    pausing = _busy_alone(slow, {"checkpoint", "eval"})
    if pausing and 2 * len(pausing) < n:
        return pausing
    # Every rank counts steps, so that also many can be behind by them. Many that are behind by
    # marks alone are rather those that wait for a rank that has marked more than they do.
    by_steps = len(behind) == len(slow) < n
    return _elsewhere(behind, stuck) or (behind if by_steps or 2 * len(behind) == n else [])


def common_place(stuck: Sequence[Beat]) -> str:
    """Where most of them are; "" if none of them says."""
    places = Counter(beat.where for beat in stuck if beat.where)
    return places.most_common(1)[0][0] if places else ""


def _lowest(beats: Sequence[Beat], key: Callable[[Beat], int]) -> list[Beat]:
    lowest = min(map(key, beats))
    return [beat for beat in beats if key(beat) == lowest]


def _outdone(behind: Sequence[Beat], slow: Sequence[Beat], n: int) -> bool:
    """Whether something speaks more against others of the same step than marks against `behind`.

    A few others load data, and `behind` do not; or a few others are in another place than most,
    and `behind` are where most are.
    """
    loading = _busy_alone(slow, {"data"})
    if loading and 2 * len(loading) <= n and not any(beat.phase == "data" for beat in behind):
        return True
    return bool(_elsewhere(slow)) and {beat.where for beat in behind} == {common_place(slow)}


def _busy_alone(beats: Sequence[Beat], phases: Set[str]) -> list[Beat]:
    """Those in one of `phases`, but for those in a place where others are outside of them.

    There the ones wait together with the others.
    """
    outside = {beat.where for beat in beats if beat.phase not in phases and beat.where}
    return [beat for beat in beats if beat.phase in phases and beat.where not in outside]


def _elsewhere(beats: Sequence[Beat], stuck: Sequence[Beat] = ()) -> list[Beat]:
    """Those in another place than most; empty unless they are fewer than half.

    A rank that does not say where it is counts for neither side. One in a place where one of
    `stuck` is that is ahead of `beats` waits with it.
    """
    common = common_place(beats)
    known = [beat for beat in beats if beat.where]
    others = [beat for beat in known if beat.where != common]
    if 2 * len(others) >= len(known):
        return []
    ranks = {beat.rank for beat in beats}
    ahead = {beat.where for beat in stuck if beat.rank not in ranks}
    return [beat for beat in others if beat.where not in ahead]

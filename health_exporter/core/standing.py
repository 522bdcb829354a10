"""How the ranks of a run stand at one moment: values only, safe to read from any thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from health_exporter.core.beat import Beat

STATUSES = ("alive", "stuck", "dead", "finished", "missing")
"""`finished` is every goodbye; `missing` has never come, whether or not it is late."""

REASONS = ("dead", "failed", "terminated", "interrupted", "missing", "stuck")
"""Why a rank is a suspect; also the order in which suspects are listed."""

MAX_SUSPECTS = 64
"""Listed at most, so that rank 0's page stays small at any world size."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rank that the run may be waiting for; `reason` is one of `REASONS`."""

    rank: int
    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class Outage:
    """One silence or standstill of one rank.

    Args:
        kind: `dead_rank` or `stuck_rank`.
        rank: The rank; None when all ranks stand still and nothing tells which one is to blame.
        host: Its host; "" where `rank` is None.
        step: Its last step; the lowest of all where `rank` is None.
        phase: The phase it was in.
        where: Where its training thread was; the place common to most where `rank` is None.
        began_s: When it was found, in rank 0's monotonic seconds.
        ended_s: When it ended, likewise; None while it lasts.
        ending: How: `recovered`, `died` (a stuck rank whose process is gone), `goodbye`, or "".
    """

    kind: str
    rank: int | None
    host: str
    step: int
    phase: str
    where: str
    began_s: float
    ended_s: float | None = None
    ending: str = ""


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank, for a page that people read.

    Args:
        rank: The rank.
        status: One of `STATUSES`.
        state: What it last said of itself; "" if it never came. So are the texts below.
        host: Its host.
        address: Its endpoint.
        step: Its last step; -1 before the first.
        phase: The phase it is in.
        still_s: Seconds since its last progress, silence since its last beat included.
        silent_s: Seconds since its last beat was seen.
        where: Where its training thread stands, once it has stood for long.
    """

    rank: int
    status: str
    state: str
    host: str
    address: str
    step: int
    phase: str
    still_s: float
    silent_s: float
    where: str


JudgedRank = tuple[str, Beat | None, float]
"""One rank as it is judged: status, newest beat, seconds of silence."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How all ranks stand.

    Args:
        world_size: Ranks in the job.
        counts: Ranks by status, every one of `STATUSES`; they sum up to `world_size`.
        goodbyes: Ranks that said goodbye by the state they named; they sum up to `finished`.
        suspects: The first `MAX_SUSPECTS` of those whom the run may be waiting for.
        n_suspects: How many there are.
        begun: Outages found since the judgement before.
        ended: Outages that ended since then.
        never_came: Ranks whose time to come has run out since then.
    """

    world_size: int
    counts: Mapping[str, int]
    goodbyes: Mapping[str, int]
    suspects: tuple[Suspect, ...]
    n_suspects: int
    begun: tuple[Outage, ...]
    ended: tuple[Outage, ...]
    never_came: tuple[int, ...]
    # Not yet `RankRow`s: those of 16,384 ranks would cost more than the judgement.
    _ranks: tuple[JudgedRank, ...] = field(repr=False)

    def row(self, rank: int) -> RankRow:
        """The row of one rank.

        Raises:
            IndexError: There is no such rank.
        """
        status, beat, silent_s = self._ranks[rank]
        if beat is None:
            return RankRow(rank, status, "", "", "", -1, "", 0.0, silent_s, "")
        still_s = beat.still_s if beat.said_goodbye else beat.still_s + silent_s
        return RankRow(
            rank,
            status,
            beat.state,
            beat.host,
            beat.address,
            beat.step,
            beat.phase,
            still_s,
            silent_s,
            beat.where,
        )

    def statuses(self) -> list[str]:
        """The status of every rank, in order of rank; cheap at any world size."""
        return [status for status, _, _ in self._ranks]

    def rows(self, *statuses: str) -> Iterator[RankRow]:
        """Rows in order of rank: all, or those with one of `statuses`."""
        for rank, (status, _, _) in enumerate(self._ranks):
            if not statuses or status in statuses:
                yield self.row(rank)

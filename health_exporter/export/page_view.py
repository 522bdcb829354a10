"""What the page at `/` is made of."""

from __future__ import annotations

from dataclasses import dataclass

from health_exporter.core.standing import Standing
from health_exporter.export.history import History
from health_exporter.export.journal import Happening
from health_exporter.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    """One rank as of one moment.

    Args:
        snapshot: What a scrape exports.
        now: Unix time.
        world_size: Ranks in the job.
        phase: The phase that the training thread is in; "" outside of any.
        still_s: Seconds since its last progress.
        stuck_s: The same where it is longer than allowed; else None.
        rank0: `host:port` at which rank 0's page is likely to be; "" if nothing is known.
        standing: How the ranks stand; None on other ranks than 0, and before the first judgement.
        history: The curves; None on other ranks than 0.
        happenings: What has happened in this attempt, oldest first.
    """

    snapshot: Snapshot
    now: float
    world_size: int
    phase: str = ""
    still_s: float = 0.0
    stuck_s: float | None = None
    rank0: str = ""
    standing: Standing | None = None
    history: History | None = None
    happenings: tuple[Happening, ...] = ()

    @property
    def state(self) -> str:
        """The run's, one of `snapshot.RUN_STATES`; on ranks other than 0, this rank's own."""
        whole = self.snapshot.whole
        return self.snapshot.own.state if whole is None else whole.state

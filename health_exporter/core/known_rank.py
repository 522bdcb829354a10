"""What rank 0 knows of one rank: its last word, and when it came."""

from __future__ import annotations

import math

from health_exporter.core.beat import Beat
from health_exporter.core.standing import Outage


class KnownRank:
    """Written by `core.verdict.RankBoard`. A field that ends in `_at` is a moment in seconds.

    Attributes:
        beat: The newest; None before it has come.
        changed_at: When it was read, on the clock of watched time.
        read_at: The same moment on rank 0's monotonic clock.
        stuck_at: When the rank was first found stuck, on the clock of watched time; None if it is
            not.
        waited_at: When others last stood still with it, likewise; minus infinity if none did.
        dead: It is dead until another beat is read.
        left_at: When it was found dead, or its goodbye was read, on rank 0's monotonic clock.
        proof: Process number, and number of beats, of a process that is known to be gone.
        outage: The one that lasts; None if it has none.
    """

    __slots__ = (
        "beat",
        "changed_at",
        "dead",
        "left_at",
        "outage",
        "proof",
        "read_at",
        "stuck_at",
        "waited_at",
    )

    def __init__(self) -> None:
        self.beat: Beat | None = None
        self.changed_at = 0.0
        self.read_at = 0.0
        self.stuck_at: float | None = None
        self.waited_at = -math.inf
        self.dead = False
        self.left_at = 0.0
        self.proof: tuple[int, int] | None = None
        self.outage: Outage | None = None

    def is_proved_gone(self) -> bool:
        """Whether the process that is known to exist no more is the one that sent `beat`."""
        if self.proof is None or self.beat is None:
            return False
        pid, beats = self.proof
        return self.beat.pid == pid and self.beat.beats <= beats

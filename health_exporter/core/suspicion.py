"""Which ranks are suspects: those that the run may be waiting for, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence

from health_exporter.core.beat import LEFT
from health_exporter.core.known_rank import KnownRank
from health_exporter.core.standing import REASONS, JudgedRank, Suspect


def suspects(
    ranks: Sequence[KnownRank],
    rows: Sequence[JudgedRank],
    *,
    late: bool,
    waiting: bool,
    standstill: bool,
) -> list[Suspect]:
    """All suspects, in the order of `REASONS`.

    Args:
        ranks: What is known of each.
        rows: How each is judged.
        late: The time to come has run out.
        waiting: Some wait for a rank that has left.
        standstill: All stand still, with none to blame.
    """
    by_reason: dict[str, list[Suspect]] = {reason: [] for reason in REASONS}
    first_cause_at = _first_cause_at(ranks, rows)
    for rank, (known, (status, beat, _)) in enumerate(zip(ranks, rows, strict=True)):
        if status == "alive":
            continue
        reason = ""
        if status == "finished" and beat is not None:
            if beat.state == "failed" or (waiting and beat.state in LEFT):
                reason = beat.state
        elif status == "stuck":
            if known.outage is not None or standstill:
                reason = status
        elif status == "dead" or late:
            reason = status
        if reason == "failed" and known.left_at > first_cause_at:
            reason = ""  # lost its connection to the one that was first, most likely
        if reason:
            by_reason[reason].append(Suspect(rank, beat.host if beat else "", reason))
    return [suspect for reason in REASONS for suspect in by_reason[reason]]


def _first_cause_at(ranks: Sequence[KnownRank], rows: Sequence[JudgedRank]) -> float:
    """When the first rank fell silent for good, or failed; in rank 0's monotonic seconds.

    When a rank goes, the collectives of the others fail, and they fail with it: their goodbyes
    may be read together with its last beat, which then counts as the earlier one.
    """
    return min(
        (
            math.nextafter(known.read_at, -math.inf) if status == "dead" else known.left_at
            for known, (status, beat, _) in zip(ranks, rows, strict=True)
            if status == "dead" or (beat is not None and beat.state == "failed")
        ),
        default=math.inf,
    )

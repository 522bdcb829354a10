"""Snapshots that have a value for everything."""

from __future__ import annotations

from health_exporter.catalog import STEP_SECONDS_BOUNDS
from health_exporter.core.anomaly import KINDS
from health_exporter.core.standing import STATUSES, Suspect
from health_exporter.snapshot import PHASES, RankView, RunView, Snapshot, StepView

FIRST_START = 1_790_000_000.0
ATTEMPT_START = 1_790_500_000.0
COUNTS = tuple(range(len(STEP_SECONDS_BOUNDS) + 1))


def full_step(**changes: object) -> StepView:
    view = StepView(
        step=70,
        n_steps=75,
        lost_steps=4,
        n_tokens=614_400,
        loss=2.25,
        grad_norm=0.75,
        loss_judged=(2.5, 0.1, -2.5),
        grad_judged=(0.7, 0.05, 1.0),
        loss_threshold=6.0,
        grad_threshold=8.0,
        mfu=0.41,
        flops_per_second=4.05e14,
        duration_counts=COUNTS,
        duration_sum_s=1234.5,
        anomalies={kind: number for number, kind in enumerate(KINDS)},
        last_anomalies=dict.fromkeys(KINDS, (ATTEMPT_START + 9.0, 60)),
        n_restarts=2,
        continuity_ok=False,
        productive_s=1200.0,
    )
    return view._replace(**changes)  # type: ignore[arg-type]


def full_snapshot(rank: int = 0, step: StepView | None = None, run: str = "llama 8b") -> Snapshot:
    own = RankView(
        host="gpu017",
        local_rank=rank % 8,
        state="failed",
        heartbeat_time=ATTEMPT_START + 10.0,
        step=70,
        progress=99,
        phase_seconds={phase: 1.5 + number for number, phase in enumerate(PHASES)},
        timeout_s=30.0,
        store_connected=True,
        exception="RuntimeError",
        otlp_failures=3,
    )
    whole = RunView(
        info={"model": "llama", "framework": "pytorch 2.13", "world_size": "16", "version": "1"},
        state="running",
        start_time=ATTEMPT_START,
        world_size=16,
        peak_flops_per_second=9.89e14,
        last=step or full_step(),
        goodput=0.93,
        ranks=dict.fromkeys(STATUSES, 2),
        suspects=(Suspect(3, "gpu018", "stuck"), Suspect(4, "gpu019", "dead")),
        rejected={"type": 1, "value": 2, "closed": 3, "internal": 4},
        receipt_failures=5,
        receipt_time=ATTEMPT_START + 11.0,
        first_start_time=FIRST_START,
    )
    return Snapshot(run, rank, own, whole if rank == 0 else None)

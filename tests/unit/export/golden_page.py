"""Hand-made snapshots, and the pages that they must give, byte for byte.

Where a page has changed on purpose, write the files anew and look at what git shows:

    python -m tests.unit.export.golden_page
"""

from __future__ import annotations

import math
from pathlib import Path

from health_exporter.catalog import STEP_SECONDS_BOUNDS
from health_exporter.core.anomaly import KINDS
from health_exporter.core.standing import Suspect
from health_exporter.export.prometheus import MetricsPage
from health_exporter.snapshot import RankView, RunView, Snapshot, StepView

FOLDER = Path(__file__).parent / "pages"
TEXT = ""
OPENMETRICS = "application/openmetrics-text; version=1.0.0"

EMPTY_STEP = StepView(
    step=None,
    n_steps=0,
    lost_steps=0,
    n_tokens=None,
    loss=None,
    grad_norm=None,
    loss_judged=None,
    grad_judged=None,
    loss_threshold=6.0,
    grad_threshold=8.0,
    mfu=None,
    flops_per_second=None,
    duration_counts=(0,) * (len(STEP_SECONDS_BOUNDS) + 1),
    duration_sum_s=0.0,
    anomalies=dict.fromkeys(KINDS, 0),
    last_anomalies={},
    n_restarts=0,
    continuity_ok=True,
    productive_s=0.0,
)
STEP = EMPTY_STEP._replace(
    step=1200,
    n_steps=1250,
    lost_steps=50,
    n_tokens=10_240_000,
    loss=2.3125,
    grad_norm=0.75,
    loss_judged=(2.25, 0.0625, 1.0),
    grad_judged=(0.5, 0.125, 2.0),
    mfu=0.4375,
    flops_per_second=4.25e14,
    duration_counts=(*(0,) * 5, 1000, 200, *(0,) * 14, 50),
    duration_sum_s=40_000.5,
    anomalies={**dict.fromkeys(KINDS, 0), "loss_spike": 2, "restart_discontinuity": 1},
    last_anomalies={"loss_spike": (1_700_000_100.5, 900), "restart_discontinuity": (1.7e9, 800)},
    n_restarts=1,
    continuity_ok=False,
    productive_s=300.0,
)
OWN = RankView(
    host="gpu001",
    local_rank=0,
    state="running",
    heartbeat_time=1_700_000_200.25,
    step=1200,
    progress=5000,
    phase_seconds={"data": 12.5, "forward": 100.0},
    timeout_s=30.0,
    store_connected=True,
    exception=None,
)
WHOLE = RunView(
    info={
        "model": 'a "small" model\\',
        "framework": "pytorch 2.13.0",
        "world_size": "4",
        "version": "0.1.0",
        "device": "",
        "flops_convention": "6N+12LHQT",
    },
    state="running",
    start_time=1_699_999_000.0,
    world_size=4,
    peak_flops_per_second=9.89e14,
    last=STEP,
    goodput=0.875,
    ranks={"alive": 3, "stuck": 1},
    suspects=(Suspect(2, "gpu002", "data"), Suspect(3, "", "lowest progress")),
    rejected={"type": 1, "value": 0, "closed": 0, "internal": 0},
    receipt_failures=0,
    receipt_time=1_700_000_199.0,
    first_start_time=1_699_990_000.0,
)
SNAPSHOT = Snapshot(run="llama\n8b", rank=0, own=OWN, whole=WHOLE)

SNAPSHOTS = {
    "rank_0": SNAPSHOT,
    "rank_0_before_the_first_step": SNAPSHOT._replace(
        own=OWN._replace(
            state="starting", step=None, progress=0, phase_seconds={}, store_connected=None
        ),
        whole=WHOLE._replace(
            state="starting",
            last=EMPTY_STEP,
            goodput=None,
            peak_flops_per_second=None,
            suspects=(),
            receipt_time=None,
        ),
    ),
    "rank_0_with_a_nan_loss": SNAPSHOT._replace(
        whole=WHOLE._replace(
            last=STEP._replace(loss=math.nan, grad_norm=math.inf, loss_judged=None)
        )
    ),
    "rank_3": Snapshot(
        run="llama\n8b",
        rank=3,
        own=OWN._replace(local_rank=3, state="failed", exception="OutOfMemoryError"),
        whole=None,
    ),
}


def render(name: str, accept: str) -> str:
    """The page of a snapshot, without the families of the process it is rendered in."""
    body, _ = MetricsPage(lambda: SNAPSHOTS[name]).render(accept)
    return "".join(
        line
        for line in body.decode().splitlines(keepends=True)
        if "process_" not in line and "python_info" not in line
    )


def path(name: str, accept: str) -> Path:
    """The file that a page is checked in as."""
    return FOLDER / f"{name}.{'openmetrics' if accept else 'prometheus'}.txt"


def rewrite() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in SNAPSHOTS:
        for accept in (TEXT, OPENMETRICS):
            path(name, accept).write_text(render(name, accept), encoding="utf-8")


if __name__ == "__main__":
    rewrite()

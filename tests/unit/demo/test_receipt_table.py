from __future__ import annotations

import io

import pytest
from rich.console import Console

from health_exporter.receipt_table import render

WHOLE = {
    "run": "r[0]",
    "status": "failed",
    "healthy": False,
    "reasons": ["the run failed", "dead_rank x 1"],
    "exception": {"type": "ValueError", "message": "no more text"},
    "n_steps": 1200,
    "last_step": 1189,
    "n_tokens": 4096,
    "loss": {"first": 5.5, "last": "NaN"},
    "mfu": {"n_samples": 2, "mean": 0.4, "min": 0.3, "max": 0.5},
    "step_time_s": {"mean": 0.25},
    "goodput": 0.9,
    "anomalies_by_kind": {"loss_spike": 10, "dead_rank": 1, "loss_drift": 0},
    "anomalies": [{"kind": "loss_spike", "step": i} for i in range(10)]
    + [{"kind": "dead_rank", "step": 99}],
    "restarts": {"n": 2, "steps": [40, 80], "continuity_ok": False, "lost_steps": 11},
    "world_size": 2,
    "ranks": {"alive": 1, "dead": 1, "stuck": 0},
    "outages": [
        {"kind": "dead_rank", "rank": "1", "host": "gpu7", "last_step": 99, "phase": "data"}
    ],
    "path": "receipts/r/report.json",
}


def text(report: dict[str, object], width: int = 120) -> str:
    output = io.StringIO()
    Console(file=output, width=width).print(render(report))
    return output.getvalue()


@pytest.mark.parametrize(
    "part",
    [
        "r[0]",
        "failed: ValueError: no more text",
        "NOT healthy: the run failed, dead_rank x 1",
        "1,200, the last 1189",
        "5.5 first, NaN last",
        "40.0% mean, 30.0% to 50.0%",
        "10 loss_spike: step 0, 1, 2, 3, 4, 5, 6, 7, ...",
        "1 dead_rank: step 99",
        "2, at step 40, 80, 11 steps done again",
        "LOST",
        "2: 1 alive, 1 dead",
        "dead_rank rank 1 on gpu7 after step 99 in data",
        "receipts/r/report.json",
    ],
)
def test_the_table_says(part: str):
    assert part in text(WHOLE)


def test_a_kind_that_never_happened_is_not_listed():
    assert "loss_drift" not in text(WHOLE)


def test_a_healthy_run_says_so():
    report = {"status": "finished", "healthy": True, "anomalies_by_kind": {}, "restarts": {"n": 0}}

    shown = text(dict(report))

    assert "verdict   │ healthy" in shown
    assert "anomalies │ none" in shown
    assert "restarts  │ none" in shown


@pytest.mark.parametrize("missing", WHOLE)
def test_any_key_may_be_missing(missing: str):
    assert text({name: value for name, value in WHOLE.items() if name != missing})


@pytest.mark.parametrize("key", WHOLE)
def test_a_key_may_be_null(key: str):
    assert text({**WHOLE, key: None})


def test_an_empty_receipt_is_an_empty_table():
    assert "training health" in text({})

"""A run that goes on from a checkpoint, from its record on disk, or from both."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from health_exporter import HealthExporter

CHECKPOINT_AT = 150
ENDED_AT = 199


def loss(step: int) -> float:
    """The same for the same step: the data order is restored in a resume."""
    return 2.0 + random.Random(step).gauss(0.0, 0.05)


def train(folder: Path, steps: range, *, offset: float = 0.0, checkpoint: Any = None) -> Any:
    """One process of the run; returns the state at the checkpoint and the report."""
    saved = None
    with HealthExporter(run="run", port=None, receipt_dir=folder, linger_s=0.0) as exporter:
        if checkpoint is not None:
            exporter.load_state_dict(json.loads(json.dumps(checkpoint)))
        for step in steps:
            exporter.observe_step(step, loss(step) + offset, step_time_s=1.0)
            if step == CHECKPOINT_AT:
                saved = exporter.state_dict()
        exporter.close("terminated")
        return saved, exporter.report()


def resume(folder: Path, **how: Any) -> dict[str, Any]:
    _, report = train(folder, range(CHECKPOINT_AT + 1, 260), **how)
    return dict(report)


def test_counters_go_on_from_the_record_though_the_checkpoint_knows_less(tmp_path: Path):
    checkpoint, _ = train(tmp_path, range(ENDED_AT + 1))
    report = resume(tmp_path, checkpoint=checkpoint)
    assert report["n_steps"] == 200 + 109
    assert report["restarts"] == {
        "steps": [151],
        "continuity_ok": True,
        "n": 1,
        "lost_steps": 49,
    }
    assert report["anomalies_by_kind"] == {}


def test_a_small_offset_shows_against_the_same_steps_that_only_the_record_has(tmp_path: Path):
    checkpoint, _ = train(tmp_path / "both", range(ENDED_AT + 1))
    both = resume(tmp_path / "both", checkpoint=checkpoint, offset=0.06)
    assert both["anomalies_by_kind"] == {"restart_discontinuity": 1}
    train(tmp_path / "record", range(ENDED_AT + 1))
    record = resume(tmp_path / "record", offset=0.06)
    assert record["anomalies_by_kind"] == {"restart_discontinuity": 1}


def test_a_checkpoint_alone_is_enough_for_counters_and_a_plain_jump(tmp_path: Path):
    checkpoint, _ = train(tmp_path / "there", range(ENDED_AT + 1))
    report = resume(tmp_path / "elsewhere", checkpoint=checkpoint, offset=1.0)
    assert report["n_steps"] == 151 + 109
    assert report["restarts"]["n"] == 1
    assert report["restarts"]["continuity_ok"] is False


def test_a_checkpoint_of_a_later_step_than_the_record_is_taken_whole(tmp_path: Path, caplog: Any):
    checkpoint, _ = train(tmp_path / "there", range(ENDED_AT + 1))
    train(tmp_path / "here", range(20))
    report = resume(tmp_path / "here", checkpoint=checkpoint)
    assert report["n_steps"] == 151 + 109
    assert "the record on disk ends at step 19" in caplog.text


def test_a_good_resume_has_as_much_goodput_as_steps_that_counted(tmp_path: Path):
    checkpoint, _ = train(tmp_path, range(ENDED_AT + 1))
    with HealthExporter(run="run", port=None, receipt_dir=tmp_path, linger_s=0.0) as exporter:
        exporter.load_state_dict(checkpoint)
        exporter.observe_step(CHECKPOINT_AT + 1, loss(CHECKPOINT_AT + 1), step_time_s=1.0)
        whole = exporter.snapshot().whole
        assert whole is not None
        assert whole.last.productive_s == CHECKPOINT_AT + 2  # steps 0 to 151, each once

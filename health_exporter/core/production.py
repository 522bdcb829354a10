"""The production preset: every number in it, and its reason."""

from __future__ import annotations

from typing import Any

from health_exporter.core.judgement import Judgement, SpecifiedJudgement
from health_exporter.core.signal import Signal

SETTINGS: dict[str, Any] = {
    "loss_window": 128,
    "loss_min_periods": 20,
    "loss_z_thresh": 6.0,
    "grad_window": 128,
    "grad_min_periods": 20,
    "grad_z_thresh": 6.0,
}


def judgement(loss_signal: Signal, grad_signal: Signal) -> Judgement:
    """The judgement of the production preset, with the windows and thresholds given."""
    return SpecifiedJudgement(loss_signal, grad_signal)

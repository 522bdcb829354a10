"""Training-health metrics for PyTorch trainers."""

from __future__ import annotations

from health_exporter.core.anomaly import Anomaly, StepRecord
from health_exporter.core.baseline import RollingBaseline
from health_exporter.core.flops import (
    MFUSample,
    ModelFlopConfig,
    flop_config_from_causal_lm,
    theoretical_flops_per_iter,
)
from health_exporter.core.monitor import TrainingHealthMonitor
from health_exporter.errors import HealthExporterError, SettingsError, StateError
from health_exporter.runtime.exporter import HealthExporter

__version__ = "0.1.0"

__all__ = [
    "Anomaly",
    "HealthExporter",
    "HealthExporterError",
    "MFUSample",
    "ModelFlopConfig",
    "RollingBaseline",
    "SettingsError",
    "StateError",
    "StepRecord",
    "TrainingHealthMonitor",
    "flop_config_from_causal_lm",
    "theoretical_flops_per_iter",
]

"""What is anomalous about a step of a real run: spikes, drift, lost speed, and lossy resumes."""

from __future__ import annotations

from collections.abc import Mapping
from math import copysign, isfinite
from typing import Any

from health_exporter.core.anomaly import Anomaly
from health_exporter.core.drift import DriftDetector
from health_exporter.core.judgement import anomaly
from health_exporter.core.record import RunRecord
from health_exporter.core.resume import ResumeComparison
from health_exporter.core.speed import SpeedDetector
from health_exporter.core.spike import SpikeSignal

_MFU, _FLOPS, _STEPS = 1, 2, 3  # units of speed
_LARGEST = 1e150  # a larger loss is judged as this: its square would be no float
_SHORTEST_S = 1e-9  # no step is shorter; keeps the step rate a finite number
_NO_SPIKE = 2  # steps after a resume: a jump there is a discontinuity or nothing


class ProductionJudgement:
    """Spikes of the loss and the gradient norm, drift, speed, and resumes.

    Args:
        loss_signal: Finds spikes of the loss.
        grad_signal: Finds spikes of the gradient norm.
        drift: Finds what is too slow for `loss_signal`.
        speed: Finds a lasting loss of speed.
        comparison: Compares a resume with the same steps before it.
    """

    __slots__ = ("_grace", "comparison", "drift", "grad_signal", "loss_signal", "speed")

    def __init__(
        self,
        loss_signal: SpikeSignal,
        grad_signal: SpikeSignal,
        drift: DriftDetector,
        speed: SpeedDetector,
        comparison: ResumeComparison,
    ) -> None:
        self.loss_signal: SpikeSignal = loss_signal
        self.grad_signal: SpikeSignal = grad_signal
        self.drift = drift
        self.speed = speed
        self.comparison = comparison
        self._grace = 0

    def resume(self, step: int) -> None:
        """Compare the next steps with the ones before; the baselines go back to the checkpoint."""
        comparison = self.comparison
        goes_back = bool(comparison.history) and comparison.history[-1][0] >= step
        comparison.begin(step)
        self._grace = _NO_SPIKE
        self.speed.begin()
        if goes_back:
            self.loss_signal.rewind(comparison.losses(self.loss_signal.memory))
            self.grad_signal.rewind(comparison.grad_norms(self.grad_signal.memory))
            self.drift.begin()

    def judge(
        self,
        step: int,
        loss: float,
        grad_norm: float | None,
        step_time_s: float | None,
        run: RunRecord,
    ) -> list[Anomaly]:
        """The anomalies of a step, whose values have been checked."""
        found: list[Anomaly] = []
        comparison = self.comparison
        signal = self.loss_signal
        if isfinite(loss):
            size = loss if -_LARGEST < loss < _LARGEST else copysign(_LARGEST, loss)
            comparison.history.append((step, size, grad_norm))
            news = signal.judge(size, False)
            if comparison.open and comparison.judge(step, size):
                found.append(self._discontinuity(step, loss))
            elif news and not self._grace:
                found.append(anomaly(step, "loss_spike", loss, signal))
            if self._grace:
                self._grace -= 1
            if signal.rebased:
                self.drift.begin()
            else:
                drift = self.drift
                drift.filling.append(size)
                if len(drift.filling) == drift.length and drift.close(signal.spread):
                    found.append(self._drifted(step, loss))
        else:
            comparison.history.append((step, loss, grad_norm))
            signal.skip()
            found.append(Anomaly(step, "nan_inf_loss", loss, None, None, step))

        signal = self.grad_signal
        if grad_norm is None:
            signal.skip()
        elif not isfinite(grad_norm):
            signal.skip()
            found.append(Anomaly(step, "nan_inf_grad", grad_norm, None, None, step))
        elif signal.judge(grad_norm, False):
            found.append(anomaly(step, "grad_norm_spike", grad_norm, signal))

        if step_time_s is not None:
            rate, unit = run.mfu, _MFU
            if rate is None:
                rate, unit = run.flops_per_second, _FLOPS
                if rate is None:
                    rate, unit = 1.0 / max(step_time_s, _SHORTEST_S), _STEPS
            speed = self.speed
            if unit != speed.unit:
                speed.measure(unit)
            speed.filling.append(rate)
            if len(speed.filling) == speed.length and speed.close():
                found.append(self._slowed(step))
        return found

    def _discontinuity(self, step: int, loss: float) -> Anomaly:
        comparison = self.comparison
        baseline, z = comparison.found or (None, None)
        self.loss_signal.rewind(comparison.fresh)  # where the loss is now is its level
        self.drift.begin()
        return Anomaly(comparison.first_step, "restart_discontinuity", loss, baseline, z, step)

    def _drifted(self, step: int, loss: float) -> Anomaly:
        value, reference, score = self.drift.found or (loss, None, None)
        return Anomaly(step, "loss_drift", value, reference, score, step)

    def _slowed(self, step: int) -> Anomaly:
        value, baseline, z = self.speed.found or (0.0, None, None)
        return Anomaly(step, "mfu_drop", value, baseline, z, step)

    def state(self) -> dict[str, Any]:
        """All that the detectors remember."""
        return {
            "production": {
                "loss": self.loss_signal.state(),
                "grad_norm": self.grad_signal.state(),
                "drift": self.drift.state(),
                "speed": self.speed.state(),
                "comparison": self.comparison.state(),
                "grace": self._grace,
            }
        }

    def restored(self, state: Mapping[str, Any]) -> ProductionJudgement:
        """A judgement like this one that goes on from a saved state.

        A state of the specification's preset has its windows, and nothing else to take over.
        """
        if "production" not in state:
            return self._from_specified(state)
        saved = state["production"]
        restored = type(self)(
            self.loss_signal.restored(saved["loss"]),
            self.grad_signal.restored(saved["grad_norm"]),
            self.drift.restored(saved["drift"]),
            self.speed.restored(saved["speed"]),
            self.comparison.restored(saved["comparison"]),
        )
        restored._grace = int(saved["grace"])
        return restored

    def _from_specified(self, state: Mapping[str, Any]) -> ProductionJudgement:
        restored = type(self)(
            self.loss_signal.anew(),
            self.grad_signal.anew(),
            DriftDetector(self.drift.settings),
            SpeedDetector(self.speed.settings),
            ResumeComparison(self.comparison.settings),
        )
        restored.loss_signal.rewind(state["loss"]["baseline"]["values"])
        restored.grad_signal.rewind(state["grad_norm"]["baseline"]["values"])
        return restored

"""What the monitor records: steps, and what was wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from health_exporter.core import argument, strict_json

KINDS = {
    "nan_inf_loss": "the loss is NaN or infinite",
    "nan_inf_grad": "the gradient norm is NaN or infinite",
    "loss_spike": "the loss jumped above its recent baseline",
    "grad_norm_spike": "the gradient norm jumped above its recent baseline",
    "loss_drift": "the loss has drifted upwards for longer than noise explains",
    "mfu_drop": "MFU or step speed has sunk below its recent level and stayed there",
    "restart_discontinuity": "the loss after a resume does not continue the loss before it",
    "dead_rank": "a rank's process is gone, or fell silent for too many steps",
    "stuck_rank": "a rank's process lives, but its training thread has stopped",
}
"""Every kind of anomaly, and what it means."""

GRAVE_KINDS = ("nan_inf_loss", "restart_discontinuity", "dead_rank", "stuck_rank")
"""Those that a person should look at even once: a spike is what training does, but these poison the
weights, break the curve, or take a rank from the run."""

_NUMBERS = ("value", "baseline", "z_score")


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One observed training step.

    Args:
        step: Optimizer step.
        loss: Training loss; may be NaN or infinite.
        grad_norm: Global gradient norm, where the trainer has one; may be NaN or infinite.
        step_time_s: Wall time of the step in seconds, where known.
        restart: True on the first step after a resume.
    """

    step: int
    loss: float
    grad_norm: float | None = None
    step_time_s: float | None = None
    restart: bool = False


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One flagged anomaly, and what it was judged against.

    Args:
        step: Step at which it happened; of a dead rank, the last step that the rank reported.
        kind: One of `KINDS`.
        value: The value that was judged: the loss, the gradient norm, or for how many steps a
            dead rank has been silent.
        baseline: Median of the window before the value; of a dead rank, the threshold in steps.
            None where nothing was compared (NaN, infinity).
        z_score: Distance from the baseline in spreads, where one was computed.
        detected_at_step: Step at which the monitor raised it (>= `step`).
        rank: The rank, where the anomaly is of one rank.
    """

    step: int
    kind: str
    value: float
    baseline: float | None
    z_score: float | None
    detected_at_step: int
    rank: str | None = None

    def latency(self, injected_at_step: int) -> int:
        """Steps from `injected_at_step` to the detection; 0 is the same step."""
        return self.detected_at_step - injected_at_step

    def as_dict(self) -> dict[str, Any]:
        """The fields by name; `rank` only where there is one."""
        fields = asdict(self)
        if self.rank is None:
            del fields["rank"]
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Anomaly:
        """The anomaly that `as_dict` described, its non-finite numbers as strings or as floats.

        Raises:
            TypeError: A field is missing, unknown or of the wrong type.
            ValueError: A step below -1.
        """
        anomaly = cls(
            **{
                name: strict_json.number(field) if name in _NUMBERS else field
                for name, field in fields.items()
            }
        )
        for name in ("step", "detected_at_step"):
            argument.integer(getattr(anomaly, name), name, minimum=-1)  # -1: before the first
        for name in _NUMBERS:
            number = getattr(anomaly, name)
            if number is not None or name == "value":
                argument.real(number, name)
        for name in ("kind", "rank"):
            text = getattr(anomaly, name)
            if not isinstance(text, str) and not (name == "rank" and text is None):
                raise TypeError(f"{name} must be a string, got {text!r}")
        return anomaly

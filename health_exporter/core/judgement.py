"""What is anomalous about a step: the specification's answer."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Protocol

from health_exporter.core import argument
from health_exporter.core.anomaly import Anomaly
from health_exporter.core.record import RunRecord
from health_exporter.core.signal import Signal

_JUDGED_AFTER_RESUME = 2
"""The flagged step and the one after it: optimizer state lost in a resume shows in the loss only
once a step has been taken with it."""


class Judgement(Protocol):
    """Finds the anomalies of each step; all that it remembers is in its state.

    Attributes:
        loss_signal: The loss, as it was judged last.
        grad_signal: The gradient norm, as it was judged last.
    """

    @property
    def loss_signal(self) -> Signal: ...
    @property
    def grad_signal(self) -> Signal: ...

    def resume(self, step: int) -> None:
        """The next step, `step`, is the first one after a resume."""

    def judge(
        self,
        step: int,
        loss: float,
        grad_norm: float | None,
        step_time_s: float | None,
        run: RunRecord,
    ) -> list[Anomaly]:
        """The anomalies of a step, whose values have been checked and booked in `run`."""

    def state(self) -> dict[str, Any]:
        """What `restored` needs, as strict JSON."""

    def restored(self, state: Mapping[str, Any]) -> Judgement:
        """A judgement like this one that goes on from a saved state.

        Raises:
            KeyError, TypeError, ValueError: The state is damaged.
        """


class SpecifiedJudgement:
    """Robust z-scores of the loss and the gradient norm, as the specification has them."""

    __slots__ = ("_discontinuity_flagged", "_grace", "grad_signal", "loss_signal")

    def __init__(self, loss_signal: Signal, grad_signal: Signal) -> None:
        self.loss_signal = loss_signal
        self.grad_signal = grad_signal
        self._grace = 0  # steps still to be judged against the baseline before the resume
        self._discontinuity_flagged = False

    def resume(self, step: int) -> None:
        """Judge the next two steps against the baseline as it stands."""
        self._grace = _JUDGED_AFTER_RESUME
        self._discontinuity_flagged = False
        self.loss_signal.hold()
        self.grad_signal.hold()

    def judge(
        self,
        step: int,
        loss: float,
        grad_norm: float | None,
        step_time_s: float | None,
        run: RunRecord,
    ) -> list[Anomaly]:
        """The anomalies of a step; the specification has none of its speed."""
        found: list[Anomaly] = []
        after_resume = self._grace > 0
        if after_resume:
            self._grace -= 1

        signal = self.loss_signal
        if not isfinite(loss):
            signal.skip()
            found.append(Anomaly(step, "nan_inf_loss", loss, None, None, step))
        elif signal.judge(loss, after_resume):
            if not after_resume:
                found.append(anomaly(step, "loss_spike", loss, signal))
            elif not self._discontinuity_flagged:
                self._discontinuity_flagged = True
                found.append(anomaly(step, "restart_discontinuity", loss, signal))

        signal = self.grad_signal
        if grad_norm is None:
            signal.skip()
        elif not isfinite(grad_norm):
            signal.skip()
            found.append(Anomaly(step, "nan_inf_grad", grad_norm, None, None, step))
        elif signal.judge(grad_norm, after_resume):
            found.append(anomaly(step, "grad_norm_spike", grad_norm, signal))
        return found

    def state(self) -> dict[str, Any]:
        """Both windows, and what is left of the steps after a resume."""
        return {
            "loss": self.loss_signal.state(),
            "grad_norm": self.grad_signal.state(),
            "grace": self._grace,
            "discontinuity_flagged": self._discontinuity_flagged,
        }

    def restored(self, state: Mapping[str, Any]) -> SpecifiedJudgement:
        """A judgement like this one that goes on from a saved state.

        The production preset keeps its windows in another form; they begin anew after it.
        """
        if "production" in state:
            return type(self)(self.loss_signal.anew(), self.grad_signal.anew())
        restored = type(self)(
            self.loss_signal.restored(state["loss"]), self.grad_signal.restored(state["grad_norm"])
        )
        restored._grace = argument.integer(state["grace"], "grace", minimum=0)
        restored._discontinuity_flagged = argument.boolean(
            state["discontinuity_flagged"], "discontinuity_flagged"
        )
        return restored


def anomaly(step: int, kind: str, value: float, signal: Signal) -> Anomaly:
    """The anomaly of a value that `signal` has just judged."""
    median, _, z = signal.judged or (None, None, None)
    return Anomaly(step, kind, value, median, z, step)

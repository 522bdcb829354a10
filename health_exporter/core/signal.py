"""One judged series of numbers: the loss, or the gradient norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from health_exporter.core import argument, strict_json
from health_exporter.core.baseline import SPREAD_FLOOR, RollingBaseline


class Signal:
    """Judges each value against the window before it, then takes the value into the window.

    Args:
        window: Values kept.
        min_periods: Values needed before anything is judged.
        threshold: Robust z-score above which a value is anomalous. Only upward: a falling loss is
            what training is for.

    Attributes:
        judged: `(median, spread, z-score)` of the newest value; None when it was not judged.
    """

    __slots__ = ("baseline", "judged", "reference", "threshold")

    def __init__(self, window: int, min_periods: int, threshold: float) -> None:
        self.baseline = RollingBaseline(window, min_periods)
        self.threshold = threshold
        self.judged: tuple[float, float, float] | None = None
        self.reference: tuple[float, float] | None = None

    def hold(self) -> None:
        """Keep the baseline as it stands, for the steps right after a resume."""
        self.reference = self.baseline.baseline()

    def judge(self, value: float, after_resume: bool) -> bool:
        """Whether `value` (finite) is anomalous; it is in the window afterwards.

        `after_resume` judges against the baseline that `hold` kept.
        """
        current = self.reference if after_resume else self.baseline.baseline()
        anomalous = False
        if current is None:
            self.judged = None
        else:
            median, spread = current
            z = (value - median) / (spread if spread > SPREAD_FLOOR else SPREAD_FLOOR)
            self.judged = (median, spread, z)
            anomalous = z > self.threshold
        self.baseline.push(value)
        return anomalous

    def skip(self) -> None:
        """The step had no finite value: nothing was judged, and nothing enters the window."""
        self.judged = None

    def anew(self) -> Signal:
        """A signal like this one that has seen nothing."""
        return type(self)(self.baseline.window, self.baseline.min_periods, self.threshold)

    def state(self) -> dict[str, Any]:
        """What `restored` needs."""
        return {"baseline": self.baseline.state(), "reference": strict_json.encode(self.reference)}

    def restored(self, state: Mapping[str, Any]) -> Signal:
        """A signal like this one, with a saved window; of a longer one, the newest values.

        Raises:
            KeyError, TypeError, ValueError: The state is damaged.
        """
        own = self.baseline
        signal = self.anew()
        for value in state["baseline"]["values"][-own.window :]:
            signal.baseline.update(value)
        if state["reference"] is not None:
            median, spread = state["reference"]
            signal.reference = (
                argument.finite(median, "median"),
                _spread(strict_json.number(spread)),
            )
        return signal


def _spread(value: object) -> float:
    """A saved spread, which overflows to infinity for values at the end of the floats' range."""
    spread = argument.real(value, "spread")
    if not spread >= 0.0:
        raise ValueError(f"spread must be >= 0, got {spread}")
    return spread

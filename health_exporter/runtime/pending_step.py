"""Steps whose loss or gradient norm is still on the device: judged in order, once it has come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from health_exporter.core.anomaly import Anomaly
from health_exporter.runtime.device_scalar import DeviceScalar, on_device

_MAX_PENDING = 8
"""A trainer that queues more steps than that ahead of its device is made to wait for it."""


class PendingSteps:
    """Not thread-safe: at the end, another thread takes the rest over from one that hangs.

    Args:
        judge: Judges one step, all of whose values the host has.
    """

    def __init__(self, judge: Callable[..., list[Anomaly]]) -> None:
        self._judge = judge
        self._steps: deque[dict[str, Any]] = deque()

    def observe(self, observation: dict[str, Any]) -> list[Anomaly]:
        """Judge a step, or keep it for later.

        Args:
            observation: Arguments of `judge`; `loss` and `grad_norm` may be on the device.

        Returns:
            The anomalies of the steps that were judged now.

        Raises:
            TypeError: A tensor on the device is not 0-d; the step is not kept.
            ValueError: As of `judge`.
        """
        is_late = False
        for name in ("loss", "grad_norm"):
            if on_device(observation[name]):
                observation[name] = DeviceScalar(observation[name], name)
                is_late = True
        if not is_late and not self._steps:
            return self._judge(**observation)
        self._steps.append(observation)
        # A number is judged at once, after all before it, which are waited for. A tensor has not
        # arrived at its own step.
        kept = 1 if is_late else 0
        found: list[Anomaly] = []
        while len(self._steps) > kept:
            is_crowded = len(self._steps) > _MAX_PENDING
            if is_late and not is_crowded and not self._has_arrived(surely=False):
                break
            found += self.judge_oldest()
        return found

    def has_next(self, *, wait: bool) -> bool:
        """Whether there is a step to judge: with `wait`, any; else one that surely has arrived."""
        return bool(self._steps) and (wait or self._has_arrived(surely=True))

    def judge_oldest(self) -> list[Anomaly]:
        """Judge the oldest step; waits for its values if it must."""
        values = {
            name: value.read() if isinstance(value, DeviceScalar) else value
            for name, value in self._steps.popleft().items()
        }
        return self._judge(**values)

    def _has_arrived(self, *, surely: bool) -> bool:
        scalars = [value for value in self._steps[0].values() if isinstance(value, DeviceScalar)]
        return all(scalar.ready(surely=surely) for scalar in scalars)

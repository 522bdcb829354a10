"""What a run has been so far: counts over all of it, and its newest steps and anomalies."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

from health_exporter.core import argument, strict_json
from health_exporter.core.anomaly import Anomaly
from health_exporter.core.flops import ModelFlopConfig
from health_exporter.core.statistic import Extremes

KEPT_ANOMALIES = 10_000
KEPT_STEPS = 1_000
"""A run has no last step: lists keep their newest entries. Counts, means and extremes stay exact
over the whole run."""


class RunRecord:
    """Books of one run; nothing here grows with the number of steps.

    Args:
        flop_config: Shape of the model, for MFU and tokens.
        peak_flops_per_sec: Peak of the hardware in FLOPs per second, for MFU.
    """

    def __init__(
        self, flop_config: ModelFlopConfig | None, peak_flops_per_sec: float | None
    ) -> None:
        self.flop_config = flop_config
        self.peak_flops_per_sec = peak_flops_per_sec
        self._flops_per_sample = None if flop_config is None else flop_config.flops_per_iter(1)
        self.n_steps = 0
        self.last_step = -1
        self.n_tokens: int | None = None
        self.n_anomalies = 0
        self.anomalies_by_kind: dict[str, int] = {}
        self.n_restarts = 0
        self.lost_steps = 0
        self.steps: deque[tuple[int, float, float | None, float | None, bool]] = deque(
            maxlen=KEPT_STEPS
        )
        self.anomalies: deque[Anomaly] = deque(maxlen=KEPT_ANOMALIES)
        self.mfu_samples: deque[tuple[int, float, float]] = deque(maxlen=KEPT_STEPS)
        self.restart_steps: deque[int] = deque(maxlen=KEPT_STEPS)
        self.mfu: float | None = None
        self.flops_per_second: float | None = None
        self._mfu = Extremes()
        self._step_time = Extremes()

    def add_step(
        self,
        step: int,
        loss: float,
        grad_norm: float | None,
        step_time_s: float | None,
        batch_size: int | None,
        restart: bool,
    ) -> None:
        """Book one step; all values are checked."""
        if restart:
            self.n_restarts += 1
            self.restart_steps.append(step)
            if step <= self.last_step:
                self.lost_steps += self.last_step - step + 1
        self.n_steps += 1
        self.last_step = step
        self.steps.append((step, loss, grad_norm, step_time_s, restart))
        self.mfu = self.flops_per_second = None
        if batch_size is not None and self.flop_config is not None:
            self.n_tokens = (self.n_tokens or 0) + batch_size * self.flop_config.seq_len
        if step_time_s is not None:
            self._step_time.add(step_time_s)
            if self._flops_per_sample is not None:
                n_samples = 1 if batch_size is None else batch_size
                self._add_speed(step, step_time_s, self._flops_per_sample * n_samples)

    def _add_speed(self, step: int, step_time_s: float, flops: float) -> None:
        self.flops_per_second = flops / step_time_s
        if self.peak_flops_per_sec is None:
            return
        self.mfu_samples.append((step, flops, step_time_s))
        mfu = self.flops_per_second / self.peak_flops_per_sec
        if isfinite(mfu):
            self.mfu = mfu
            self._mfu.add(mfu)

    def add_anomalies(self, found: Iterable[Anomaly]) -> None:
        """Book anomalies, in their order."""
        for anomaly in found:
            self.anomalies.append(anomaly)
            self.n_anomalies += 1
            count = self.anomalies_by_kind.get(anomaly.kind, 0)
            self.anomalies_by_kind[anomaly.kind] = count + 1

    def report(self) -> dict[str, Any]:
        """The parts of the monitor's report that are books; non-finite numbers are floats."""
        mfu = self._mfu.summary()
        return {
            "n_steps": self.n_steps,
            "last_step": self.last_step if self.n_steps else None,
            "n_tokens": self.n_tokens,
            "n_anomalies": self.n_anomalies,
            "anomalies_by_kind": dict(self.anomalies_by_kind),
            "anomalies": [anomaly.as_dict() for anomaly in self.anomalies],
            "mfu": {"n_samples": mfu.pop("n"), **mfu},
            "step_time_s": self._step_time.summary(),
            "restarts": {
                "steps": list(self.restart_steps),
                "continuity_ok": not self.anomalies_by_kind.get("restart_discontinuity"),
                "n": self.n_restarts,
                "lost_steps": self.lost_steps,
            },
            "dropped": {
                "anomalies": self.n_anomalies - len(self.anomalies),
                "restarts": self.n_restarts - len(self.restart_steps),
            },
        }

    def state(self) -> dict[str, Any]:
        """What `from_state` needs, as strict JSON; the newest steps and samples are not kept."""
        return {
            "n_steps": self.n_steps,
            "last_step": self.last_step,
            "n_tokens": self.n_tokens,
            "n_anomalies": self.n_anomalies,
            "anomalies_by_kind": dict(self.anomalies_by_kind),
            "anomalies": [strict_json.encode(anomaly.as_dict()) for anomaly in self.anomalies],
            "n_restarts": self.n_restarts,
            "restart_steps": list(self.restart_steps),
            "lost_steps": self.lost_steps,
            "mfu": self._mfu.state(),
            "step_time_s": self._step_time.state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], like: RunRecord) -> RunRecord:
        """The books that `state()` described, for the model and hardware of `like`.

        Raises:
            KeyError, TypeError, ValueError: The state is damaged.
        """
        restored = cls(like.flop_config, like.peak_flops_per_sec)
        restored.n_steps = _count(state, "n_steps")
        restored.last_step = argument.integer(state["last_step"], "last_step", minimum=-1)
        restored.n_tokens = None if state["n_tokens"] is None else _count(state, "n_tokens")
        by_kind = state["anomalies_by_kind"]
        restored.anomalies_by_kind = {str(kind): _count(by_kind, kind) for kind in by_kind}
        restored.anomalies.extend(map(Anomaly.from_dict, state["anomalies"]))
        restored.n_anomalies = _count(state, "n_anomalies", minimum=len(restored.anomalies))
        for step in state["restart_steps"]:
            restored.restart_steps.append(argument.integer(step, "restart_steps", minimum=0))
        restored.n_restarts = _count(state, "n_restarts", minimum=len(restored.restart_steps))
        restored.lost_steps = _count(state, "lost_steps")
        restored._mfu = Extremes.from_state(state["mfu"])
        restored._step_time = Extremes.from_state(state["step_time_s"])
        return restored


def _count(state: Mapping[str, Any], name: str, *, minimum: int = 0) -> int:
    return argument.integer(state[name], name, minimum=minimum)

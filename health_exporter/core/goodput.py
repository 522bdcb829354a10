"""How much of a run's time went into steps that counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from health_exporter.core import argument

_MARKS = 512
"""Marks kept. When full, every second one goes: a resume is then placed with a resolution of
n_steps / 256 at worst, and exactly while the run is short."""


class Goodput:
    """Seconds spent in steps that were not done again.

    A resume that goes back from step 200 to 151 takes the time of steps 151 to 200 out again.
    To know it without keeping every step, the sum is marked at some steps, evenly spread over the
    run, and interpolated in between.
    """

    __slots__ = ("_before_first", "_every", "_last_step", "_marks", "_since", "productive_s")

    def __init__(self) -> None:
        self.productive_s = 0.0
        self._marks: list[tuple[int, float]] = []  # (step, productive seconds up to and with it)
        self._every = 1
        self._since = 0
        self._last_step = -1
        self._before_first = -1  # the step before the first one: the monitor may come in late

    def add(self, step: int, seconds: float) -> None:
        """Count a step that took `seconds`."""
        if not self.productive_s:
            self._before_first = step - 1
        self.productive_s += seconds
        self._last_step = step
        self._since += 1
        if self._since >= self._every:
            self._since = 0
            self._marks.append((step, self.productive_s))
            if len(self._marks) > _MARKS:
                self._marks = self._marks[1::2]
                self._every *= 2

    def rewind(self, step: int) -> None:
        """Training resumes with `step`: what was done from there on is lost."""
        if step > self._last_step:
            return
        above = (self._last_step, self.productive_s)
        while self._marks and self._marks[-1][0] >= step:
            above = self._marks.pop()
        below_step, below_s = self._marks[-1] if self._marks else (self._before_first, 0.0)
        share = (step - 1 - below_step) / max(1, above[0] - below_step)
        self.productive_s = below_s + max(0.0, share) * (above[1] - below_s)
        self._last_step = step - 1
        self._since = 0

    def state(self) -> dict[str, Any]:
        """What `from_state` needs."""
        return {
            "productive_s": self.productive_s,
            "last_step": self._last_step,
            "before_first": self._before_first,
            "every": self._every,
            "marks": self._marks[:],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Goodput:
        """The sum that `state()` described.

        Raises:
            KeyError, TypeError, ValueError: The state is damaged.
        """
        restored = cls()
        restored.productive_s = argument.nonnegative(state["productive_s"], "productive_s")
        restored._last_step = argument.integer(state["last_step"], "last_step", minimum=-1)
        restored._before_first = argument.integer(state["before_first"], "before_first", minimum=-1)
        restored._every = argument.integer(state["every"], "every", minimum=1)
        restored._marks = [
            (argument.integer(step, "marks", minimum=0), argument.nonnegative(seconds, "marks"))
            for step, seconds in state["marks"]
        ]
        return restored

"""What this rank's training thread has done, and for how long it may do nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

from health_exporter.core.baseline import RollingBaseline
from health_exporter.runtime.settings import Settings
from health_exporter.snapshot import PHASES

_WARM_STEPS = 3
"""Step times needed before their median sets the timeout: compilers and allocators are still busy
in the first ones."""

_STEPS_OF_SILENCE = 10.0
_LEAST_TIMEOUT_S = 30.0
"""Ten median steps without progress, but never less than 30 s: below that, ordinary pauses
(garbage collection, a slow file system) would count as stuck."""

_PAUSES = ("checkpoint", "eval")
"""Phases that are no part of a step: their time is not step time."""


class Mark(NamedTuple):
    """One sign of progress; replaced, never changed, so that other threads read it whole."""

    n: int
    monotonic_s: float
    time: float
    step: int | None


class Progress:
    """Moved only by the training thread; read by any.

    Attributes:
        mark: The newest sign of progress.
        marks: Phases entered or left since the last step, but for `checkpoint` and `eval`, which
            one rank often does alone: ranks that run the same loop can be compared by it.
        phase_seconds: Seconds spent in each phase so far, without those nested in it.
        thread_id: The training thread, as far as is known.

    Args:
        settings: Timeouts.
        monotonic: Clock for durations, in seconds.
        wall: Unix time, in seconds, for what is exported.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._wall = wall
        self._pause_timeouts = {
            "checkpoint": settings.checkpoint_timeout_s,
            "eval": settings.eval_timeout_s,
        }
        self._stack: list[tuple[str, float]] = []
        self._phases = {name: Phase(self, name) for name in PHASES}
        self._phase_since = 0.0
        self._paused_s = 0.0  # in pauses since the last step
        self._last_step_s: float | None = None
        self._step_time = RollingBaseline(window=128, min_periods=_WARM_STEPS)
        self.marks = 0
        self.thread_id = threading.get_ident()
        self.phase_seconds: dict[str, float] = {}
        self.mark = Mark(0, monotonic(), wall(), None)

    def observe_step(self, step: int) -> float | None:
        """A step is done.

        Returns:
            Seconds since the step before, without pauses; None for the first step.
        """
        now = self._monotonic()
        self._pause_until(now)
        duration = None
        if self._last_step_s is not None:
            elapsed = now - self._last_step_s - self._paused_s
            if elapsed > 0.0:  # a clock of coarse resolution may not have moved
                duration = elapsed
                self._step_time.push(elapsed)
        self._last_step_s = now
        self._paused_s = 0.0
        self.marks = 0
        self.thread_id = threading.get_ident()
        self.mark = Mark(self.mark.n + 1, now, self._wall(), step)
        return duration

    def advance(self) -> None:
        """The training thread lives, though what it said could not be used."""
        mark = self.mark
        self.mark = Mark(mark.n + 1, self._monotonic(), self._wall(), mark.step)

    def _pause_until(self, now: float) -> None:
        """Count the pause, if it is in one, up to now; what follows belongs to the next step."""
        for index, (name, since) in enumerate(self._stack):
            if name in _PAUSES:
                self._paused_s += now - since
                self._stack[index] = (name, now)
                return

    def forget_last_step(self) -> None:
        """The next step comes after a resume: the time since the last one is no step time."""
        self._last_step_s = None

    def phase(self, name: str) -> Phase:
        """A context manager that marks the phase.

        Raises:
            ValueError: `name` is none of `PHASES`.
        """
        try:
            return self._phases[name]
        except (KeyError, TypeError):
            raise ValueError(f"phase must be one of {', '.join(PHASES)}, got {name!r}") from None

    @property
    def current_phase(self) -> str:
        """The phase that is marked now: a pause, else the innermost; "" outside of any."""
        names = [name for name, _ in tuple(self._stack)]
        return next((name for name in names if name in _PAUSES), names[-1] if names else "")

    @property
    def still_s(self) -> float:
        """Seconds since the last progress."""
        return self._monotonic() - self.mark.monotonic_s

    @property
    def timeout_s(self) -> float:
        """For how many seconds there may be no progress, in what is being done now."""
        settings = self._settings
        usual = self._step_time.baseline()
        if self.mark.step is None:
            timeout = settings.startup_timeout_s
        elif settings.heartbeat_timeout_s is not None:
            timeout = settings.heartbeat_timeout_s
        elif usual is None:
            timeout = settings.startup_timeout_s
        else:
            timeout = max(_LEAST_TIMEOUT_S, _STEPS_OF_SILENCE * usual[0])
        for name, _ in tuple(self._stack):
            timeout = max(timeout, self._pause_timeouts.get(name, 0.0))
        return timeout

    def _enter(self, name: str) -> None:
        now = self._turn()
        self._stack.append((name, now))
        if name not in _PAUSES:
            self.marks += 1

    def _leave(self) -> None:
        now = self._turn()
        name, since = self._stack.pop()
        if name not in _PAUSES:
            self.marks += 1
        elif not any(outer in _PAUSES for outer, _ in self._stack):
            self._paused_s += now - since

    def _turn(self) -> float:
        """Credit the time since the last mark to the innermost phase, and mark progress."""
        now = self._monotonic()
        if self._stack:
            name = self._stack[-1][0]
            spent = self.phase_seconds.get(name, 0.0) + now - self._phase_since
            self.phase_seconds[name] = spent
        self._phase_since = now
        mark = self.mark
        self.mark = Mark(mark.n + 1, now, self._wall(), mark.step)
        return now


class Phase:
    """Context manager that marks a phase of the training thread; may be nested and reused."""

    __slots__ = ("_progress", "name")

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress = progress
        self.name = name

    def __enter__(self) -> None:
        self._progress._enter(self.name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress._leave()

"""Whether a resume goes on where the checkpoint left off.

Steps are done again after a resume, so its losses are compared with what the *same steps* gave
before it, pair by pair, and with the level of the losses around the checkpoint. Comparing the
first resumed loss with the newest one before it would accuse every good resume whose loss had
fallen in the meantime.

What can be said depends on the data. When the data order is restored, pairs agree to within
rounding, and an offset far below the noise of single losses is found over some tens of steps, and
a hard batch that comes again is not accused. When the data order changed, pairs differ by the
noise of two losses: a jump by more than that noise is still found from its second step on, and an
offset of some tenths of it after 32 steps, but whether the data or the optimizer state is the
cause cannot be said. Where no step is done again, or the steps before are not known (a checkpoint
carries the state as it was at the checkpoint), only the level around the checkpoint is left, and
only a plain jump can be told from noise.

A process that is killed takes its newest steps with it, and the next one may go on from a
checkpoint of a step that nobody here has seen. How far the loss fell in between is not known: a
fall is then no sign of anything. A rise still is one, for a state that is lost or much older has
the loss that the run had long before; but as much as the loss has risen in as many steps before
is its own course, and not the resume's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from math import inf, isfinite, sqrt
from typing import Any

from health_exporter.core import argument, unseen
from health_exporter.core.baseline import MAD_TO_SIGMA
from health_exporter.core.median import median

_GROUPS = 8  # means of neighbouring pairs whose scatter is the error of their mean


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeSettings:
    """How a `ResumeComparison` judges; `production` gives each number its reason.

    A scale is the spread of the losses around the checkpoint.

    Args:
        kept: Newest steps remembered.
        around: Losses on each side of the checkpoint that make its level.
        least: Losses needed there before anything is judged.
        level_share: Smallest scale, as a share of the level.
        at_once: Excess of the first loss over the level, in scales, that needs no second.
        early: Mean excess of the first two losses, in standard errors, where pairs agree.
        early_pairs: Mean difference of the first two pairs, in scales, that agrees.
        alone: `early` where there are no pairs.
        fall: As `early`, downwards, in scales: a loss that falls is good news until it is absurd.
            Where there are no pairs, below the lowest loss.
        lasting: Losses after which a lasting jump is judged.
        lasting_jump: Mean excess and mean difference of pairs then, in scales.
        lasting_alone: `lasting_jump` where there are no pairs.
        offset_after: Numbers of pairs after which a small offset is judged; the last one ends
            the comparison.
        offset: Mean difference of pairs, in scales, below which there is no offset.
        offset_errors: Mean difference of pairs then, in standard errors.
    """

    kept: int
    around: int
    least: int
    level_share: float
    at_once: float
    early: float
    early_pairs: float
    alone: float
    fall: float
    lasting: int
    lasting_jump: float
    lasting_alone: float
    offset_after: tuple[int, ...]
    offset: float
    offset_errors: float


class ResumeComparison:
    """Remembers the newest steps, and compares those after a resume with them.

    Attributes:
        open: A resume is being judged.
        fresh: Losses after the resume so far, while it is being judged.
        found: `(baseline, z-score)` of the discontinuity that `judge` has just found: what the
            same step gave before, or else the level around the checkpoint; and the mean excess so
            far in its standard errors.
        first_step: First step after the resume.
    """

    __slots__ = (
        "_differences", "_earlier", "_level", "_lowest", "_rise", "_scale", "_z", "first_step",
        "found", "fresh", "history", "open", "settings",
    )  # fmt: skip

    def __init__(self, settings: ResumeSettings) -> None:
        self.settings = settings
        self.history: deque[tuple[int, float, float | None]] = deque(maxlen=settings.kept)
        self._earlier: dict[int, float] = {}
        self.open = False
        self.fresh: list[float] = []
        self._z = 0.0
        self._differences: list[float] = []
        self._level = self._scale = 0.0
        self._rise = 0.0  # over the unseen steps, of the run's own
        self._lowest: float | None = None  # a loss below it is a fall; None: there is none
        self.first_step = 0
        self.found: tuple[float, float] | None = None

    def begin(self, step: int) -> None:
        """The next step, `step`, is the first one after a resume; what came after it is undone."""
        undone = {s: loss for s, loss in self._earlier.items() if s >= step} if self.open else {}
        history = self.history
        newer: dict[int, float] = {}
        while history and history[-1][0] >= step:
            s, loss, _ = history.pop()
            newer[s] = loss
        undone.update(newer)
        self._earlier = {s: undone[s] for s in sorted(undone) if isfinite(undone[s])}
        around = self.settings.around
        before = self.losses(around)
        reference = before + list(islice(self._earlier.values(), around))
        self.open = len(reference) >= self.settings.least
        self.fresh = []
        self._differences = []
        self.first_step = step
        if self.open:
            self._level = median(reference)
            deviations = [abs(loss - self._level) for loss in reference]
            self._scale = max(
                MAD_TO_SIGMA * median(deviations), self.settings.level_share * abs(self._level)
            )
            self.open = self._scale > 0.0
            missing = unseen.losses([s for s, loss, _ in history if isfinite(loss)], step)
            every = self.losses(self.settings.kept)
            self._rise = unseen.rise(every, missing, around, self._scale) if missing else 0.0
            lowest = min(reference)
            # As far below as the losses are apart: one that has begun to fall may go on.
            width = max(self.settings.fall * self._scale, max(reference) - lowest)
            self._lowest = None if missing else lowest - width

    def losses(self, n: int) -> list[float]:
        """The newest `n` finite losses that count, oldest first."""
        finite = (loss for _, loss, _ in reversed(self.history) if isfinite(loss))
        return list(islice(finite, n))[::-1]

    def grad_norms(self, n: int) -> list[float]:
        """The newest `n` finite gradient norms that count, oldest first."""
        norms = (norm for _, _, norm in reversed(self.history))
        return list(islice((n for n in norms if n is not None and isfinite(n)), n))[::-1]

    def judge(self, step: int, loss: float) -> bool:
        """Whether this step, with a finite loss, shows a discontinuity; call it while `open`."""
        settings = self.settings
        self.fresh.append(loss)
        earlier = self._earlier.get(step)
        if earlier is not None:
            self._differences.append(loss - earlier)
        n = len(self.fresh)
        pairs = len(self._differences)
        if n <= 2:
            found = self._jumped(n, pairs)
        elif n == settings.lasting:
            found = self._stayed(pairs)
        else:
            found = earlier is not None and pairs in settings.offset_after and self._offset(pairs)
        if found:
            self._conclude()
            return True
        if n >= settings.offset_after[-1]:
            self._close()
        return False

    def _jumped(self, n: int, pairs: int) -> bool:
        settings = self.settings
        mean = sum(self.fresh) / n
        difference = sum(self._differences) / pairs / self._scale if pairs else None
        expected = self._level if pairs else self._level + self._rise
        excess = (mean - expected) / self._scale
        self._z = excess * sqrt(n)
        if n == 1:
            return excess >= settings.at_once and (
                difference is None or difference >= settings.at_once / 2.0
            )
        if difference is None:
            fallen = self._lowest is not None and mean <= self._lowest
            return self._z >= settings.alone or fallen
        if excess <= -settings.fall and difference <= -settings.fall:
            return True
        return self._z >= settings.early and difference >= settings.early_pairs

    def _stayed(self, pairs: int) -> bool:
        settings = self.settings
        n = len(self.fresh)
        expected = self._level if pairs else self._level + self._rise
        excess = (sum(self.fresh) / n - expected) / self._scale
        self._z = excess * sqrt(n)
        if not pairs:
            return excess >= settings.lasting_alone
        difference = sum(self._differences) / pairs / self._scale
        return excess >= settings.lasting_jump and difference >= settings.lasting_jump

    def _offset(self, pairs: int) -> bool:
        settings = self.settings
        mean = sum(self._differences) / pairs
        if mean < settings.offset * self._scale:
            return False
        size = pairs // _GROUPS
        means = [
            sum(self._differences[first : first + size]) / size
            for first in range(0, size * _GROUPS, size)
        ]
        mean = sum(means) / _GROUPS
        variance = sum((value - mean) ** 2 for value in means) / (_GROUPS - 1)
        # Pairs that agree exactly have no scatter: rounding is the least there is.
        error = max(sqrt(variance / _GROUPS), 1e-3 * self._scale)
        self._z = mean / error
        return self._z > settings.offset_errors

    def _conclude(self) -> None:
        baseline = self.fresh[-1] - self._differences[-1] if self._differences else self._level
        self.found = (baseline, self._z)
        self._close()

    def _close(self) -> None:
        self.open = False
        self._earlier = {}
        self._differences = []

    def state(self) -> dict[str, Any]:
        """What `restored` needs; losses that are not finite are None."""
        steps, losses, norms = [], [], []
        for step, loss, norm in self.history:
            steps.append(step)
            losses.append(loss if isfinite(loss) else None)
            norms.append(norm if norm is not None and isfinite(norm) else None)
        return {
            "steps": steps,
            "losses": losses,
            "grad_norms": norms,
            "open": self.open,
            "earlier_steps": list(self._earlier),
            "earlier_losses": list(self._earlier.values()),
            "fresh": list(self.fresh),
            "differences": list(self._differences),
            "level": self._level,
            "scale": self._scale,
            "rise": self._rise,
            "lowest": self._lowest,
            "first_step": self.first_step,
        }

    def restored(self, state: Mapping[str, Any]) -> ResumeComparison:
        """A comparison like this one that goes on from a saved state.

        Raises:
            KeyError, TypeError, ValueError: The state is damaged.
        """
        restored = type(self)(self.settings)
        columns = (state["steps"], state["losses"], state["grad_norms"])
        for step, loss, norm in zip(*columns, strict=True):
            restored.history.append(
                (
                    argument.integer(step, "steps", minimum=0),
                    inf if loss is None else argument.finite(loss, "losses"),
                    None if norm is None else argument.finite(norm, "grad_norms"),
                )
            )
        restored.open = argument.boolean(state["open"], "open")
        restored._earlier = dict(
            zip(
                (argument.integer(step, "earlier_steps") for step in state["earlier_steps"]),
                _floats(state["earlier_losses"], "earlier_losses"),
                strict=True,
            )
        )
        restored.fresh = _floats(state["fresh"], "fresh")
        restored._differences = _floats(state["differences"], "differences")
        restored._level = argument.finite(state["level"], "level")
        restored._scale = argument.nonnegative(state["scale"], "scale")
        # A state of an earlier version has neither; it knew nothing of unseen steps.
        restored._rise = argument.nonnegative(state.get("rise", 0.0), "rise")
        lowest = state.get("lowest")
        restored._lowest = None if lowest is None else argument.finite(lowest, "lowest")
        restored.first_step = argument.integer(state["first_step"], "first_step", minimum=0)
        return restored


def _floats(values: Iterable[Any], name: str) -> list[float]:
    return [argument.finite(value, name) for value in values]

"""Slow divergence: a loss that rises for longer than noise explains, too slowly for a z-score.

A one-sided CUSUM (Page 1954, "Continuous inspection schemes") on the medians of blocks of losses.
Blocks make it cheap, and robust: what a spike does is not drift. Their own scatter is the scale,
so that correlated noise is not taken for drift.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from health_exporter.core import argument
from health_exporter.core.baseline import MAD_TO_SIGMA
from health_exporter.core.median import median


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftSettings:
    """How a `DriftDetector` judges; `production` gives each number its reason.

    Args:
        block: Losses in a block.
        blocks: Blocks whose median is the reference.
        least: Blocks needed before one is judged.
        spread_share: Smallest scale, in spreads of a single loss.
        level_share: Smallest scale, as a share of the reference.
        allowance: Excess over the reference that counts as none, in scales.
        limit: Sum of the excesses at which drift is reported.
        most: Largest excess of one block that counts, in scales.
    """

    block: int
    blocks: int
    least: int
    spread_share: float
    level_share: float
    allowance: float
    limit: float
    most: float


class DriftDetector:
    """Accumulates by how much blocks of losses lie above the blocks before them.

    Attributes:
        found: `(value, reference, score)` of the drift that `add` has just reported: the median
            of the newest block, the one of those before it, and the sum of the excesses.
    """

    __slots__ = ("_filling", "_length", "_medians", "_sum", "found", "settings")

    def __init__(self, settings: DriftSettings) -> None:
        self.settings = settings
        self._length = settings.block
        self.begin()

    def begin(self) -> None:
        """Forget everything: a new level has been accepted."""
        self._filling: list[float] = []
        self._medians: deque[float] = deque(maxlen=self.settings.blocks)
        self._sum = 0.0
        self.found: tuple[float, float, float] | None = None

    def add(self, loss: float, spread: float) -> bool:
        """Take in a finite loss, and the spread of single losses now; whether drift is found."""
        filling = self._filling
        filling.append(loss)
        if len(filling) < self._length:
            return False
        return self._close(spread)

    def _close(self, spread: float) -> bool:
        settings = self.settings
        newest = median(self._filling)
        self._filling = []
        before = list(self._medians)
        self._medians.append(newest)
        if len(before) < settings.least:
            return False
        reference = median(before)
        steps = [abs(after - first) for first, after in pairwise(before)]
        # The difference of two equally scattered medians scatters sqrt(2) times as much.
        scale = max(
            MAD_TO_SIGMA * median(steps) / 2.0**0.5,
            settings.spread_share * spread,
            settings.level_share * abs(reference),
        )
        if scale == 0.0:
            return False
        excess = min((newest - reference) / scale - settings.allowance, settings.most)
        self._sum = max(0.0, self._sum + excess)
        if self._sum <= settings.limit:
            return False
        found = (newest, reference, self._sum)
        self.begin()  # one event; where the loss is now is the new reference
        self.found = found
        return True

    def state(self) -> dict[str, Any]:
        """What `restored` needs."""
        return {"filling": list(self._filling), "medians": list(self._medians), "sum": self._sum}

    def restored(self, state: Mapping[str, Any]) -> DriftDetector:
        """A detector like this one that goes on from a saved state.

        Raises:
            KeyError, TypeError, ValueError: The state is damaged.
        """
        detector = type(self)(self.settings)
        detector._filling = [argument.finite(value, "filling") for value in state["filling"]]
        detector._filling = detector._filling[-self._length + 1 :]
        detector._medians.extend(argument.finite(value, "medians") for value in state["medians"])
        detector._sum = argument.nonnegative(state["sum"], "sum")
        return detector

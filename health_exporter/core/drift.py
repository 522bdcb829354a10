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
        filling: Losses of the block that is being filled: append each finite one, and call
            `close` when there are `length`.
        length: Losses in a block.
        found: `(value, reference, score)` of the drift that `close` has just reported: the median
            of the newest block, the one of those before it, and the sum of the excesses.
    """

    __slots__ = ("_medians", "_sum", "filling", "found", "length", "settings")

    def __init__(self, settings: DriftSettings) -> None:
        self.settings = settings
        self.length = settings.block
        self.begin()

    def begin(self) -> None:
        """Forget everything: a new level has been accepted."""
        self.filling: list[float] = []
        self._medians: deque[float] = deque(maxlen=self.settings.blocks)
        self._sum = 0.0
        self.found: tuple[float, float, float] | None = None

    def close(self, spread: float) -> bool:
        """End the block that has been filled; `spread` is that of single losses now.

        Returns:
            Whether drift is found.
        """
        settings = self.settings
        newest = median(self.filling)
        self.filling = []
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
        return {"filling": list(self.filling), "medians": list(self._medians), "sum": self._sum}

    def restored(self, state: Mapping[str, Any]) -> DriftDetector:
        """A detector like this one that goes on from a saved state.

        Raises:
            KeyError, TypeError, ValueError: The state is damaged.
        """
        detector = type(self)(self.settings)
        detector.filling = [argument.finite(value, "filling") for value in state["filling"]]
        detector.filling = detector.filling[-self.length + 1 :]
        detector._medians.extend(argument.finite(value, "medians") for value in state["medians"])
        detector._sum = argument.nonnegative(state["sum"], "sum")
        return detector

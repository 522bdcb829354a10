"""A lasting loss of speed: MFU, or where it is not known the step rate, that stays down.

Blocks are compared by their medians, so that a stall in fewer than half of the steps (an
evaluation or a checkpoint folded into the step time, every tenth step of some optimizers) is no
loss of speed, however long it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from health_exporter.core import argument
from health_exporter.core.baseline import MAD_TO_SIGMA
from health_exporter.core.median import median


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedSettings:
    """How a `SpeedDetector` judges; `production` gives each number its reason.

    Args:
        block: Steps in a block.
        blocks: Blocks whose median is the baseline.
        least: Blocks needed before one is judged.
        skipped: Blocks left out at the beginning and after a resume.
        drop: Smallest share of the speed whose loss is reported.
        spreads: Smallest loss, in spreads of the blocks before.
        lasting: Blocks in a row that must be slow.
    """

    block: int
    blocks: int
    least: int
    skipped: int
    drop: float
    spreads: float
    lasting: int


class SpeedDetector:
    """Compares blocks of speeds with those before them.

    Attributes:
        filling: Speeds of the block that is being filled: append each one, and call `close` when
            there are `length`.
        length: Speeds in a block.
        unit: Of the speeds; see `measure`.
        found: `(value, baseline, z-score)` of the drop that `close` has just reported: the median
            of the slow blocks, the one of those before, and their distance in spreads (< 0).
    """

    __slots__ = ("_medians", "_skip", "_slow", "filling", "found", "length", "settings", "unit")

    def __init__(self, settings: SpeedSettings) -> None:
        self.settings = settings
        self.length = settings.block
        self.unit = 0
        self.begin()

    def begin(self) -> None:
        """Forget everything: the hardware or the layout may be another one after a resume."""
        self.filling: list[float] = []
        self._medians: deque[float] = deque(maxlen=self.settings.blocks)
        self._slow: list[float] = []
        self._skip = self.settings.skipped
        self.found: tuple[float, float, float] | None = None

    def measure(self, unit: int) -> None:
        """Speeds are in `unit` from now on; in another one than before, everything begins anew."""
        if unit != self.unit:
            self.unit = unit
            self.begin()

    def close(self) -> bool:
        """End the block that has been filled; whether a lasting drop is found."""
        settings = self.settings
        newest = median(self.filling)
        self.filling = []
        if self._skip:
            self._skip -= 1
            return False
        before = list(self._medians)
        if len(before) < settings.least:
            self._medians.append(newest)
            return False
        baseline = median(before)
        spread = MAD_TO_SIGMA * median([abs(value - baseline) for value in before])
        if baseline - newest <= max(settings.drop * baseline, settings.spreads * spread):
            self._medians.extend(self._slow)  # short dips are part of what this run does
            self._slow.clear()
            self._medians.append(newest)
            return False
        self._slow.append(newest)
        if len(self._slow) < settings.lasting:
            return False
        slow = self._slow
        value = median(slow)
        self.begin()
        self._skip = 0
        self._medians.extend(slow)  # one event; the speed now is the new baseline
        self.found = (value, baseline, (value - baseline) / (spread or baseline * 0.01))
        return True

    def state(self) -> dict[str, Any]:
        """What `restored` needs."""
        return {
            "filling": list(self.filling),
            "medians": list(self._medians),
            "slow": list(self._slow),
            "skip": self._skip,
            "unit": self.unit,
        }

    def restored(self, state: Mapping[str, Any]) -> SpeedDetector:
        """A detector like this one that goes on from a saved state.

        Raises:
            KeyError, TypeError, ValueError: The state is damaged.
        """
        detector = type(self)(self.settings)
        detector.filling = [argument.finite(value, "filling") for value in state["filling"]]
        detector.filling = detector.filling[-self.length + 1 :]
        detector._medians.extend(argument.finite(value, "medians") for value in state["medians"])
        detector._slow = [argument.finite(value, "slow") for value in state["slow"]]
        detector._skip = argument.integer(state["skip"], "skip", minimum=0)
        detector.unit = argument.integer(state["unit"], "unit", minimum=0)
        return detector

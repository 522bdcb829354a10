"""What a series' own tails do, over its newest few thousand values.

A window of 128 values knows the middle of a distribution; its tails need a longer memory. The
series is cut into blocks, and of each block the extremes are kept, in spreads: the deepest value,
the deepest sum of two neighbours, and the highest value.

Noise goes both ways, and a spike only goes up: how deep the dips are tells how high a harmless
value can be. A running mean that starts afresh at each epoch, or heavy-tailed noise, shows dips
that Gaussian noise never has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from health_exporter.core.spike_settings import SpikeSettings

BLOCK = 64
"""Values in a block: no more than a window holds, so that one block has about one spread."""

_BLOCKS = 64  # 4,096 values: the third deepest of them is a value of about one in a thousand
_DEEPEST = 30.0
"""Spreads. A deeper dip (a learning rate cut in a series without noise, a gradient norm of nearly
0) says no more about the noise than this."""


class Tail:
    """Extremes of a series of z-scores, block by block.

    Attributes:
        dip: How deep the series goes, in spreads (>= 0): the third deepest block, so that two
            steps downward (the learning rate falls, an epoch ends) are not taken for noise.
        double_dip: The same for the sum of two neighbours.
        rise: How high the series goes in about one of 512 values, in spreads.
    """

    __slots__ = ("_dips", "_double_dips", "_rises", "dip", "double_dip", "rise")

    def __init__(self) -> None:
        self._dips: deque[float] = deque(maxlen=_BLOCKS)
        self._double_dips: deque[float] = deque(maxlen=_BLOCKS)
        self._rises: deque[float] = deque(maxlen=_BLOCKS)
        self.dip = self.double_dip = self.rise = 0.0

    @property
    def share(self) -> float:
        """Share (0 to 1) of the values that it takes to know the tails roughly: 256 of them."""
        return min(1.0, 32.0 * len(self._dips) / _BLOCKS)

    @property
    def short(self) -> bool:
        """Fewer than 1,024 values: too few for a deep one to be left out."""
        return len(self._dips) < _BLOCKS // 4

    def deepen(self, dip: float, double_dip: float) -> None:
        """Count a dip before its block is full: a short tail cannot wait for that."""
        self.dip = max(self.dip, min(dip, _DEEPEST))
        self.double_dip = max(self.double_dip, min(double_dip, _DEEPEST))

    def add(self, dip: float, double_dip: float, rise: float) -> None:
        """Take in the extremes of a block, in spreads."""
        self._dips.append(min(dip, _DEEPEST))
        self._double_dips.append(min(double_dip, _DEEPEST))
        self._rises.append(rise)
        self._measure()

    def _measure(self) -> None:
        n = len(self._dips)
        if not n:
            return
        place = -1 if self.short else -2 if n < _BLOCKS // 2 else -3
        self.dip = sorted(self._dips)[place]
        self.double_dip = sorted(self._double_dips)[place]
        self.rise = sorted(self._rises)[-max(1, n // 8)]  # the 8th highest of 4,096 values

    def threshold(self, nominal: float, settings: SpikeSettings) -> float:
        """z-score that a value must exceed: `nominal`, or what these tails call for."""
        threshold = max(nominal, settings.rise_factor * self.rise)
        if self.dip > settings.gaussian_dip:
            grown = nominal * (self.dip / settings.gaussian_dip) ** settings.dip_power
            grown = min(grown, settings.dip_limit)
            threshold = max(threshold, grown, settings.dip_factor * self.dip)
        return threshold

    def double_threshold(self, settings: SpikeSettings) -> float:
        """The same for the sum of two neighbouring z-scores."""
        return max(
            settings.double_threshold,
            settings.double_dip_factor * self.double_dip,
            settings.double_rise_factor * self.rise,
        )

    def state(self) -> dict[str, Any]:
        """What `from_state` needs."""
        return {
            "dips": list(self._dips),
            "double_dips": list(self._double_dips),
            "rises": list(self._rises),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Tail:
        """The tail that `state()` described.

        Raises:
            KeyError, TypeError, ValueError: The state is damaged.
        """
        restored = cls()
        restored._dips.extend(_floats(state["dips"]))
        restored._double_dips.extend(_floats(state["double_dips"]))
        restored._rises.extend(_floats(state["rises"]))
        if not len(restored._dips) == len(restored._double_dips) == len(restored._rises):
            raise ValueError("dips, double_dips and rises must be equally many")
        restored._measure()
        return restored


def _floats(values: Iterable[Any]) -> list[float]:
    return [float(value) for value in values]

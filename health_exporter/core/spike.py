"""A signal for real runs: a robust z-score of what is left when the trend is taken away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp, expm1, inf, log
from typing import Any

from health_exporter.core import argument
from health_exporter.core.baseline import SPREAD_FLOOR, RollingBaseline
from health_exporter.core.median import RollingMedian
from health_exporter.core.signal import Signal
from health_exporter.core.spike_settings import SpikeSettings
from health_exporter.core.tail import BLOCK, Tail

_NOISE = 2.0
"""Lower z-scores are not looked at: even two of them make no spike."""

_LARGEST_LOG = 700.0  # the exponential of more is no float


class SpikeSignal(Signal):
    """Judges each value against the trend, the noise around it, and the series' own tails.

    Anomalous values stay out of the windows. A run of them is a new level: it becomes the
    baseline, and is anomalous no longer.

    Attributes:
        threshold: z-score above which a value is anomalous, as the tails have it now.
        rebased: The newest value is the one from which on an event is a new level.
        baseline: Window of the values; once the trend is known, of what it leaves of them.
    """

    __slots__ = (
        "_centre", "_count", "_double_threshold", "_enough", "_event_length", "_event_z", "_floor",
        "_full", "_highest", "_jump", "_level", "_log_space", "_low", "_low_double", "_pending",
        "_previous", "_rejected", "_seen", "_spread", "_start", "_top", "_upper", "_upper_share",
        "_upper_z", "_z", "nominal_threshold", "rebased", "settings", "tail",
    )  # fmt: skip

    def __init__(
        self, window: int, min_periods: int, threshold: float, settings: SpikeSettings
    ) -> None:
        self.settings = settings
        self.nominal_threshold = threshold
        self.tail = Tail()
        self._low = self._low_double = self._top = 0.0  # extremes of the block being filled
        self._seen = 0  # values in it
        self._start = settings.start
        self._log_space = settings.log_space
        self._floor = settings.spread_floor
        self._jump = settings.jump_floor
        super().__init__(window, min_periods, threshold)
        self._upper_z = settings.tail_spread
        self._upper_share = 1.0 - settings.tail_share
        self._upper = int(window * self._upper_share)  # its place in a sorted full window
        self._enough = window // 2  # values that have an upper tenth to speak of
        self._begin()
        self._set_thresholds()

    def _begin(self) -> None:
        """Forget the level and the noise; the tails stay."""
        window, least = self.baseline.window, self.baseline.min_periods
        trend = self.settings.trend_window
        self.baseline = RollingBaseline(window, least)
        self._level = RollingMedian(trend) if trend else None
        self._full = False  # the window has been filled
        self._z: float | None = None
        self._centre = self._spread = 0.0
        self._count = 0
        self._highest = -inf
        self._previous = 0.0  # the z-score before
        self._pending: list[float] = []  # anomalous values in a row
        self._rejected = 0  # anomalous values in the block
        self._event_z = 0.0  # highest z-score of the open event, 0.0 when none is open
        self._event_length = 0  # values since it began
        self.rebased = False

    @property
    def judged(self) -> tuple[float, float, float] | None:
        """`(median, spread, z-score)` of the newest value; None when it was not judged.

        The median is the level that was expected. Both are in the units of the values: in log
        space the median is the exponential of the logarithms' one, and the spread leads from it
        to the value whose z-score is 1. z-scores are those of the logarithms.
        """
        if self._z is None:
            return None
        if not self.settings.log_space:
            return (self._centre, self._spread, self._z)
        median = exp(self._centre)
        return (median, median * expm1(min(self._spread, _LARGEST_LOG)), self._z)

    @judged.setter
    def judged(self, judged: tuple[float, float, float] | None) -> None:
        self._z = None if judged is None else judged[2]

    def judge(self, value: float, after_resume: bool) -> bool:
        """Whether `value` begins an anomalous event, or makes the open one much worse.

        It is finite, and so is its square.
        `after_resume` judges alike: after a resume, `rewind` gives the baseline.
        """
        if self._log_space:
            if value <= 0.0:  # no gradient at all is not too much of it
                self._z = None
                return False
            value = log(value)
        self.rebased = False
        window = self.baseline
        current = window._current
        if current is None:
            self._z = None
            self._take(value)
            return False
        centre, spread = current
        starting = self._count < self._start
        level = self._level
        if level is not None and not starting:
            centre += level.median
        # The scale: the middle half's, or the upper tenth's where that is wider, or the floor.
        if self._full or len(window) >= self._enough:
            ordered = window._sorted
            place = self._upper if self._full else int(len(ordered) * self._upper_share)
            upper = (ordered[place] - current[0]) / self._upper_z
            if upper > spread:
                spread = upper
        floor = self._floor
        if not self._log_space:
            floor *= centre if centre > 0.0 else -centre
        if spread < floor:
            spread = floor
        if spread < SPREAD_FLOOR:
            spread = SPREAD_FLOOR
        excess = value - centre
        z = excess / spread
        if starting:
            return self._judge_start(value, centre, spread)
        self._centre, self._spread, self._z = centre, spread, z
        previous = self._previous
        self._previous = z
        double = z + previous
        if z < self._low or double < self._low_double:
            self._deepen(z, double)
        elif z > self._top and not self._pending:
            self._top = z
        self._seen += 1
        if self._seen >= BLOCK:
            self._close_block()
        if z > _NOISE and self._anomalous(z, previous, excess, centre):
            return self._add_anomalous(value, z)
        if self._event_z:
            self._settle(z)
        if level is None:
            window.push(value)
        else:
            window.push(value - level.median)
            level.push(value)
        if not self._full and len(window) == window.window:
            self._full = True
        return False

    def _anomalous(self, z: float, previous: float, excess: float, centre: float) -> bool:
        """Whether a value is above what the noise and the tails explain."""
        settings = self.settings
        inflation = 1.0
        if self.tail.share < 1.0:
            inflation += settings.tail_inflation * (1.0 - self.tail.share)
        if not self._full:
            inflation *= self._sample_inflation()
        if z > self.threshold * inflation and (
            excess > self._jump * abs(centre) or z > settings.unmistakable * inflation
        ):
            return True
        double = self._double_threshold * inflation
        most = double * settings.double_share
        return min(z, most) + min(previous, most) > double

    def _judge_start(self, value: float, centre: float, spread: float) -> bool:
        """Judge one of the first values: only a new maximum can be anomalous."""
        settings = self.settings
        if settings.log_space and spread > settings.start_spread_limit:
            spread = settings.start_spread_limit
        z = (value - centre) / spread
        self._centre, self._spread, self._z = centre, spread, z
        inflation = 1.0 + settings.start_inflation / self._count
        if value > self._highest and z > self.nominal_threshold * inflation:
            return self._add_anomalous(value, z)
        if self._event_z:
            self._settle(z)
        self._take(value)
        return False

    def _add_anomalous(self, value: float, z: float) -> bool:
        """Keep an anomalous value out of the window; whether it is to be reported."""
        self._rejected += 1
        if self._rejected > self.settings.rebase_after:
            # So many, and not in a row: this is what the series does, and the window learns it.
            self._settle(z)
            self._take(value)
            return False
        pending = self._pending
        pending.append(value)
        self._event_length += 1
        news = z > self._event_z * self.settings.worse
        if news or z > self._event_z:
            self._event_z = z
        if len(pending) >= self.settings.rebase_after:
            self._begin()
            self.rebased = True
            for kept in pending:
                self._take(kept)
        return news

    def _settle(self, z: float) -> None:
        """A value that is not anomalous, while an event is open."""
        self._pending = []
        if z < self.settings.event_end:
            self._event_z = 0.0
            self._event_length = 0
            return
        self._event_length += 1
        self.rebased = self._event_length == self.settings.rebase_after

    def _take(self, value: float) -> None:
        """Take a value into the windows."""
        level = self._level
        if self._count < self._start:
            self.baseline.push(value)
            if level is not None:
                level.push(value)
            if value > self._highest:
                self._highest = value
            self._count += 1
            if level is not None and self._count == self._start:
                self._end_start()
        elif level is None:
            self.baseline.push(value)
        else:
            self.baseline.push(value - level.median)
            level.push(value)
        self._full = len(self.baseline) == self.baseline.window

    def _end_start(self) -> None:
        """The trend is known from here on: the window holds what it leaves of the values."""
        values = list(self.baseline._arrival)
        own = self.baseline
        level = RollingMedian(self.settings.trend_window)
        self.baseline = RollingBaseline(own.window, own.min_periods)
        for value in values:
            if level.filled:
                self.baseline.push(value - level.median)
            level.push(value)

    def _sample_inflation(self) -> float:
        """By how much a spread of so few values may be too small."""
        return 1.0 + (self.settings.sample_inflation / len(self.baseline)) ** 2

    def _deepen(self, z: float, double: float) -> None:
        if not self._full:
            inflation = self._sample_inflation()
            z /= inflation
            double /= inflation
        self._low = min(self._low, z)
        self._low_double = min(self._low_double, double)
        if self.tail.short:
            self.tail.deepen(-self._low, -self._low_double)
            self._set_thresholds()

    def _close_block(self) -> None:
        self.tail.add(-self._low, -self._low_double, self._top)
        self._low = self._low_double = self._top = 0.0
        self._seen = self._rejected = 0
        self._set_thresholds()

    def _set_thresholds(self) -> None:
        self.threshold = self.tail.threshold(self.nominal_threshold, self.settings)
        self._double_threshold = self.tail.double_threshold(self.settings)

    @property
    def spread(self) -> float:
        """Of the newest judged value, as it was judged; 0.0 before."""
        return self._spread

    @property
    def memory(self) -> int:
        """Values that fill the windows."""
        return self.baseline.window + self.settings.trend_window

    def anew(self) -> SpikeSignal:
        """A signal like this one that has seen nothing."""
        own = self.baseline
        return type(self)(own.window, own.min_periods, self.nominal_threshold, self.settings)

    def rewind(self, values: Iterable[float]) -> None:
        """Begin anew with the values before a checkpoint, oldest first; the tails stay."""
        self._begin()
        log_space = self.settings.log_space
        for value in values:
            if not log_space:
                self._take(value)
            elif value > 0.0:
                self._take(log(value))

    def state(self) -> dict[str, Any]:
        """What `restored` needs."""
        level = self._level
        return {
            "baseline": self.baseline.state(),
            "reference": None,
            "level": None if level is None else level.values(),
            "count": self._count,
            "highest": self._highest if self._count else None,
            "previous": self._previous,
            "pending": list(self._pending),
            "event_z": self._event_z,
            "event_length": self._event_length,
            "tail": self.tail.state(),
            "block": [self._seen, self._low, self._low_double, self._top, self._rejected],
        }

    def restored(self, state: Mapping[str, Any]) -> SpikeSignal:
        """A signal like this one that goes on from a saved state; of a longer window, the newest.

        Raises:
            KeyError, TypeError, ValueError: The state is damaged.
        """
        own = self.baseline
        signal = self.anew()
        for value in state["baseline"]["values"][-own.window :]:
            signal.baseline.update(value)
        level = signal._level
        if level is not None and state["level"] is not None:
            for value in state["level"][-level.window :]:
                level.push(argument.finite(value, "level"))
        signal._full = len(signal.baseline) == own.window
        signal._count = argument.integer(state["count"], "count", minimum=0)
        if level is not None and not level.filled and signal._count >= signal._start:
            raise ValueError("level must be filled once the start is over")
        if state["highest"] is not None:
            signal._highest = argument.finite(state["highest"], "highest")
        signal._previous = argument.finite(state["previous"], "previous")
        signal._pending = [argument.finite(value, "pending") for value in state["pending"]]
        signal._event_z = argument.finite(state["event_z"], "event_z")
        signal._event_length = argument.integer(state["event_length"], "event_length", minimum=0)
        signal.tail = Tail.from_state(state["tail"])
        seen, low, low_double, top, rejected = state["block"]
        signal._rejected = argument.integer(rejected, "block", minimum=0)
        signal._seen = argument.integer(seen, "block", minimum=0)
        signal._low = argument.finite(low, "block")
        signal._low_double = argument.finite(low_double, "block")
        signal._top = argument.finite(top, "block")
        if signal.tail.short:
            signal.tail.deepen(-signal._low, -signal._low_double)
        signal._set_thresholds()
        return signal

"""How a `SpikeSignal` judges: all its numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeSettings:
    """How a `SpikeSignal` judges; `production` gives each number its reason.

    Args:
        log_space: Judge the logarithm of the values.
        trend_window: Values whose median is the level that is taken away; 0 takes none away.
        spread_floor: Smallest spread, as a share of the level (in log space: as it is).
        jump_floor: Share of the level by which a single value must stand out; below it, only
            `unmistakable` thresholds count.
        unmistakable: See `jump_floor`.
        tail_share: Share of the window that may lie further up than the middle half explains
            before the spread follows it.
        tail_spread: Spreads to the value which a share of `tail_share` exceeds, at most.
        rise_factor: Multiples of the tail's `rise` that a value must exceed.
        dip_factor: Multiples of the tail's `dip` that a value must exceed.
        gaussian_dip: A dip that Gaussian noise does not show; deeper ones raise the threshold
            with the power `dip_power`, up to `dip_limit` spreads.
        dip_power: See `gaussian_dip`.
        dip_limit: See `gaussian_dip`.
        double_threshold: Sum of two neighbouring z-scores above which both are a spike.
        double_dip_factor: Multiples of the tail's `double_dip` that the sum must exceed.
        double_rise_factor: Multiples of the tail's `rise` that the sum must exceed.
        double_share: Largest share of the threshold that one of the two can contribute.
        start: Values after which the start is over: until then the trend is not known, and only
            a new maximum can be anomalous.
        start_inflation: The threshold for n values at the start is 1 + start_inflation / n times
            as high.
        sample_inflation: Afterwards it is 1 + (sample_inflation / n)^2 times as high, until the
            window is full.
        tail_inflation: While the tails are not known, up to 1 + tail_inflation times.
        start_spread_limit: Largest spread at the start.
        rebase_after: Anomalous values in a row that become the new baseline; more of them in a
            block of the tail, not in a row, are taken for what the series does.
        event_end: z-score below which an event is over.
        worse: Multiples of an event's highest z-score at which it is reported again.
    """

    log_space: bool
    trend_window: int
    spread_floor: float
    jump_floor: float
    unmistakable: float
    tail_share: float
    tail_spread: float
    rise_factor: float
    dip_factor: float
    gaussian_dip: float
    dip_power: float
    dip_limit: float
    double_threshold: float
    double_dip_factor: float
    double_rise_factor: float
    double_share: float
    start: int
    start_inflation: float
    sample_inflation: float
    tail_inflation: float
    start_spread_limit: float
    rebase_after: int
    event_end: float
    worse: float

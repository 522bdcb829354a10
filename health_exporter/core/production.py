"""The production preset: every number in it, and its reason.

Reasons speak of 4,096 steps as "rare" and of 100,000 as "never": a run of a month has a million
steps, and a person can look at some tens of alarms in it. `tests/benchmarks/test_detection.py`
prints what each number changes when it is halved and doubled.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, log
from typing import Any

from health_exporter.core.drift import DriftDetector, DriftSettings
from health_exporter.core.production_judgement import ProductionJudgement
from health_exporter.core.resume import ResumeComparison, ResumeSettings
from health_exporter.core.signal import Signal
from health_exporter.core.speed import SpeedDetector, SpeedSettings
from health_exporter.core.spike import SpikeSignal
from health_exporter.core.spike_settings import SpikeSettings

SETTINGS: dict[str, Any] = {
    # The MAD of 128 values is within 10 % of the noise that it measures, of 20 within 26 %: a
    # threshold of 6 spreads is then one of 5.4 to 6.6, and not of 4.4 to 7.6.
    "loss_window": 128,
    # A gradient norm's level moves with warm-up and the learning rate, and no trend is taken
    # away from it: a shorter window follows, and its error of 14 % is small against the factors
    # by which gradient norms spike.
    "grad_window": 64,
    # Fewer than five values have no spread to speak of; as in the specification.
    "loss_min_periods": 5,
    "grad_min_periods": 5,
    # 6 spreads: Gaussian noise exceeds them once in a thousand million values. As in the
    # specification: what cried wolf there were the windows and the tails, not the threshold.
    "loss_z_thresh": 6.0,
    "grad_z_thresh": 6.0,
}
"""The constructor's arguments that this preset sets otherwise than the specification."""

TREND_SHARE = 4
"""The loss's level is the median of a quarter of its window, 32 values: their median errs by a
fifth of the noise, and lags a falling loss by 16 steps, over which it falls by less than it
scatters. The lag itself is measured: the window holds what the level leaves over."""

LOSS = SpikeSettings(
    log_space=False,  # a loss can be negative, and its noise is no constant share of it
    trend_window=32,  # of the preset's window; see TREND_SHARE
    # Losses are logged with three or four digits: noise below 0.3 % of the level is rounding,
    # and nobody is called for a jump of 2 %.
    spread_floor=0.003,
    # One bad batch among hundreds raises the loss of its step by several per cent, and the next
    # step is as before. Alone, a value must stand out by a tenth of the level, or be unmistakable;
    # from its second value on, a smaller jump is found by the sum of the two.
    jump_floor=0.1,
    unmistakable=8.0,  # a 12-sigma spike is seen whatever the MAD's error, 10 % (3 of those)
    # Where a tenth of the values lies further up than the middle half explains (a loss with two
    # modes, a skewed one), that tenth gives the scale. Of Gaussian noise the upper tenth begins
    # at 1.28 spreads; 1.6 leaves it alone, sampling error included.
    tail_share=0.1,
    tail_spread=1.6,
    # A loss's rare rises are what is looked for, unlike those of gradient norms.
    rise_factor=0.0,
    double_rise_factor=0.0,
    # Noise goes both ways. Gaussian noise dips by 3.2 spreads about once in a thousand values
    # and by 4 once in 30,000. Deeper ones are heavy tails, and raise the threshold. Student's t
    # with 3 degrees of freedom dips by 10 spreads once in a thousand values and exceeds 45 once
    # in 100,000; the power leads there with the error of the estimated dip, a fifth, to spare.
    # Dips deeper still are those of a running mean begun afresh: the threshold stays at 100.
    gaussian_dip=4.0,
    dip_power=3.3,
    dip_limit=100.0,
    dip_factor=2.0,
    # Two neighbours of 4 spreads each, or 6 and 2: as improbable as one of 5.7.
    double_threshold=8.0,
    # Sums of neighbours dip by 4.5 once in a thousand values if they are independent, and by 6 if
    # they are correlated: noise has no sum of more than twice that, and a tenth for its error.
    double_dip_factor=2.2,
    double_share=0.75,  # so that one high value needs a neighbour of a third of its height
    # A trend cannot be told from noise in fewer values than 24; until then the threshold falls
    # from 16 spreads (5 values) to 8.
    start=24,
    start_inflation=8.0,
    start_spread_limit=inf,
    sample_inflation=20.0,  # 1.7 times the threshold for 24 values, 1.1 for 64: the MAD's error
    tail_inflation=0.25,  # nothing is known of the tails before 128 values
    rebase_after=8,  # spikes that recover last 1 to 7 logged values; what lasts longer is a level
    event_end=2.0,  # back in the noise; above it, values go on with the event
    worse=2.0,  # an event that has doubled is news: a ripple before the blow-up must not hide it
)

GRAD = SpikeSettings(
    log_space=True,  # gradient norms scatter by factors
    trend_window=0,
    # 6 spreads of 0.11 are a factor of 1.93: a gradient norm that has not about doubled is no
    # explosion, however quiet the run.
    spread_floor=0.11,
    jump_floor=0.0,  # the floor above is one
    unmistakable=0.0,  # and needs no exception
    tail_share=0.1,  # as for the loss
    tail_spread=1.6,
    # Gradient norms of some runs are heavy-tailed upwards for good: a value must exceed by a
    # quarter what happens once in 512 steps, and two neighbours together by as much as two such.
    rise_factor=1.25,
    double_rise_factor=2.0,
    gaussian_dip=4.0,  # as for the loss, from here on
    dip_power=3.3,
    dip_limit=100.0,
    dip_factor=2.0,
    double_threshold=8.0,
    double_dip_factor=2.2,
    double_share=0.75,
    start=24,
    start_inflation=8.0,
    sample_inflation=20.0,
    # However the first norms scatter, ten times their median and more than any of them is a
    # spike, once the start is nearly over.
    start_spread_limit=log(10.0) / 6.0,
    tail_inflation=0.25,
    rebase_after=8,
    event_end=2.0,
    worse=2.0,
)

DRIFT = DriftSettings(
    block=32,  # the median of 32 losses errs by 0.22 of their noise
    blocks=16,  # 512 steps: longer than a wave of the data, shorter than training's own progress
    least=8,  # fewer medians have no scatter to speak of
    spread_share=0.25,  # that 0.22: blocks cannot scatter less than their own noise
    level_share=0.005,  # half a per cent in a block is a change of data, not divergence
    allowance=1.0,  # half of the shift that is looked for, two scales (Page 1954)
    limit=18.0,  # expected once in e^24 blocks of independent noise, and never at half the scale
    most=20.0,  # one block alone must lie 10 % above the level, or by 5 spreads of one loss
)

SPEED = SpeedSettings(
    block=16,  # an evaluation or a checkpoint falls into fewer than half of 16 steps
    blocks=32,  # 512 steps
    least=8,  # 128 steps, long enough for the clocks and the data cache to settle
    skipped=1,  # compilation and warm-up
    drop=0.15,  # between one allocation and the next, MFU differs by several per cent
    spreads=6.0,  # as for the loss
    lasting=3,  # 48 steps: a slow patch of the data or of a shared file system is over by then
)

RESUME = ResumeSettings(
    kept=4096,  # more steps than lie between two checkpoints, and a state of about 100 kB
    around=16,  # on each side: more would measure training's progress, fewer the noise
    least=8,
    level_share=0.003,  # the loss's spread floor
    at_once=6.0,  # the loss's threshold
    # A resume is one question, not one of 100,000: 2.75 standard errors on two losses are as
    # improbable as three in a thousand, and the pairs must say the same.
    early=2.75,
    early_pairs=0.7,  # half of their error, when the data order changed
    alone=5.0,  # with no pairs to agree, 1 in a million, for losses are no Gaussian noise
    fall=8.0,  # a lower loss is good news; by 8 scales at once, it is another task or model
    lasting=16,
    lasting_jump=1.5,  # six standard errors of 16 losses
    lasting_alone=2.0,  # eight: training's own progress is in it
    offset_after=(32, 64),  # some tens of steps; each pair of a restored data order is exact
    offset=0.1,  # kernels that sum in another order differ by a hundredth of the noise
    offset_errors=5.0,  # 8 group means: Student's t with 7 degrees, 1 in 1,000 for each look
)


def judgement(loss_signal: Signal, grad_signal: Signal) -> ProductionJudgement:
    """The preset's judgement, with the windows and thresholds of the signals given."""
    return ProductionJudgement(
        _spike_signal(loss_signal, LOSS),
        _spike_signal(grad_signal, GRAD),
        DriftDetector(DRIFT),
        SpeedDetector(SPEED),
        ResumeComparison(RESUME),
    )


def _spike_signal(signal: Signal, settings: SpikeSettings) -> SpikeSignal:
    baseline = signal.baseline
    if settings.trend_window:
        settings = replace(settings, trend_window=max(2, baseline.window // TREND_SHARE))
    return SpikeSignal(baseline.window, baseline.min_periods, signal.threshold, settings)

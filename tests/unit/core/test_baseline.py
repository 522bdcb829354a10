from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from health_exporter import RollingBaseline

# Few different values: ties everywhere, also between deviations on both sides of the median.
TIES = st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0, 3.0])
# Below the point where the difference of two of them overflows; NumPy gives infinity there.
ANY = st.floats(min_value=-8e307, max_value=8e307)
DENORMAL = st.integers(-9, 9).map(lambda n: n * 5e-324)
LOSS_LIKE = st.floats(min_value=0.5, max_value=12.0)
SERIES = st.one_of(*(st.lists(kind, max_size=80) for kind in (TIES, ANY, DENORMAL, LOSS_LIKE)))


def filled(values, window=20, min_periods=5):
    baseline = RollingBaseline(window, min_periods)
    for value in values:
        baseline.update(value)
    return baseline


@settings(max_examples=300, deadline=None)
@given(values=SERIES, window=st.integers(2, 13), data=st.data())
def test_median_and_mad_are_those_of_numpy(values, window, data):
    min_periods = data.draw(st.integers(2, window))
    baseline = RollingBaseline(window, min_periods)
    for count, value in enumerate(values, start=1):
        baseline.update(value)
        kept = np.array(values[max(0, count - window) : count])
        if len(kept) < min_periods:
            assert baseline.baseline() is None
            continue
        with np.errstate(over="ignore"):
            median = np.median(kept)
            mad = np.median(np.abs(kept - median)) * 1.4826
        if not math.isfinite(median) or not math.isfinite(mad):
            continue  # NumPy's own sum overflowed
        found_median, found_mad = baseline.baseline() or (None, None)
        assert found_median == pytest.approx(median, rel=1e-15, abs=5e-324)
        assert found_mad == pytest.approx(mad, rel=1e-14, abs=1e-323)


@settings(max_examples=30, deadline=None)
@given(window=st.sampled_from([64, 65, 127, 128, 1000]), seed=st.integers(0, 2**32 - 1))
def test_long_windows_stay_exact_over_jumps_and_trends(window, seed):
    random = np.random.default_rng(seed)
    jumps = np.where(random.random(3 * window) < 0.02, 100.0, 0.0)
    values = np.cumsum(random.normal(size=3 * window)) + jumps
    baseline = RollingBaseline(window, 2)
    for count, value in enumerate(values, start=1):
        baseline.update(value)
        if count % 17 == 2:
            kept = values[max(0, count - window) : count]
            median = np.median(kept)
            mad = 1.4826 * np.median(np.abs(kept - median))
            assert baseline.baseline() == pytest.approx((median, mad), rel=1e-14)


@pytest.mark.parametrize(
    ("values", "median", "mad"),
    [
        ([1.0, 2.0], 1.5, 0.5),
        ([1.0, 2.0, 4.0], 2.0, 1.0),
        ([1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0], 2.0, 1.0),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 100.0], 3.5, 1.5),
        ([5.0, 5.0, 5.0, 5.0], 5.0, 0.0),
        ([-3.0, -2.0, 0.0, 10.0, 11.0], 0.0, 3.0),
    ],
)
def test_hand_computed_windows(values, median, mad):
    assert filled(values, min_periods=2).baseline() == (median, pytest.approx(1.4826 * mad))


def test_median_of_two_values_whose_sum_overflows():
    median, _ = filled([1.5e308, 1.7e308], min_periods=2).baseline()
    assert median == pytest.approx(1.6e308)


def test_negative_zeros_leave_the_window_like_any_other_value():
    baseline = filled([0.0, -0.0, 0.0, -0.0], window=3, min_periods=2)
    for value in (7.0, 8.0, 9.0):
        baseline.update(value)
    assert baseline.state()["values"] == [7.0, 8.0, 9.0]
    assert baseline.baseline() == (8.0, pytest.approx(1.4826))


def test_nothing_is_scored_before_min_periods():
    baseline = RollingBaseline(window=10, min_periods=3)
    for value in (1.0, 2.0):
        baseline.update(value)
        assert baseline.baseline() is None
        assert baseline.z_score(100.0) is None
    baseline.update(3.0)
    assert baseline.z_score(100.0) == pytest.approx(98.0 / 1.4826)


def test_scoring_does_not_take_the_value_in():
    baseline = filled([1.0, 2.0, 3.0, 4.0, 5.0])
    before = baseline.baseline()
    baseline.z_score(1e6)
    assert baseline.baseline() == before
    assert len(baseline) == 5


def test_z_score_is_signed():
    baseline = filled([1.0, 2.0, 3.0, 4.0, 5.0])
    assert baseline.z_score(0.0) == pytest.approx(-3.0 / 1.4826)


def test_equal_values_are_divided_by_the_floor_of_the_specification():
    assert filled([2.0] * 5).z_score(2.0 + 2**-30) == 2**-30 / 1e-12


def test_a_spread_above_the_floor_is_used_as_it_is():
    values = [0.0, 1e-11, 2e-11, 3e-11, 4e-11]
    assert filled(values).z_score(5e-11) == pytest.approx(3.0 / 1.4826)


def test_a_spread_below_the_floor_is_the_floor():
    values = [0.0, 1e-13, 2e-13, 3e-13, 4e-13]
    assert filled(values).z_score(5e-13) == pytest.approx(0.3)


def test_defaults_of_the_specification():
    baseline = RollingBaseline()
    assert (baseline.window, baseline.min_periods) == (20, 5)


@pytest.mark.parametrize("value", [np.float32(2.0), np.array(2.0), np.int64(2), 2, Fraction(2)])
def test_every_kind_of_number_is_taken_in_and_scored(value):
    baseline = filled([1.0, value, 3.0], min_periods=2)
    assert baseline.baseline()[0] == 2.0
    assert type(baseline.z_score(value)) is float
    json.dumps(baseline.state())


def test_a_float32_is_scored_in_double_precision():
    baseline = filled([1.0, 2.0, 3.0, 4.0, 1e-30])
    assert baseline.z_score(np.float32(1e30)) == baseline.z_score(float(np.float32(1e30)))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_non_finite_value_is_refused(value):
    baseline = filled([1.0, 2.0, 3.0], min_periods=2)
    before = baseline.state()
    with pytest.raises(ValueError, match=rf"value must be finite, got {value}"):
        baseline.update(value)
    assert baseline.state() == before


@pytest.mark.parametrize("value", ["1", None, True, [1.0], 1j, np.array([1.0])])
def test_what_is_no_number_is_refused(value):
    baseline = filled([1.0, 2.0, 3.0], min_periods=2)
    with pytest.raises(TypeError, match="value must be a real number, got "):
        baseline.update(value)
    with pytest.raises(TypeError, match="value must be a real number, got "):
        baseline.z_score(value)
    assert len(baseline) == 3


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"window": 1}, ValueError, "window must be >= 2, got 1"),
        ({"window": 2.0}, TypeError, "window must be an integer, got 2.0"),
        ({"window": True}, TypeError, "window must be an integer, got True"),
        ({"min_periods": 1}, ValueError, "min_periods must be >= 2, got 1"),
        ({"min_periods": None}, TypeError, "min_periods must be an integer, got None"),
        ({"window": 4, "min_periods": 5}, ValueError, "min_periods must be <= window=4, got 5"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        RollingBaseline(**arguments)


@settings(max_examples=100, deadline=None)
@given(before=SERIES, after=st.lists(ANY, max_size=20), window=st.integers(2, 9))
@example(before=[0.0, 0.0, 1.0, 1.0], after=[0.0], window=4)
def test_a_restored_baseline_goes_on_as_if_it_had_never_stopped(before, after, window):
    original = filled(before, window, min_periods=2)
    restored = RollingBaseline.from_state(json.loads(json.dumps(original.state())))
    assert restored.baseline() == original.baseline()
    for value in after:
        original.update(value)
        restored.update(value)
        assert restored.baseline() == original.baseline()


def test_state_is_a_copy():
    baseline = filled([1.0, 2.0])
    baseline.state()["values"].append(3.0)
    assert baseline.state() == {"window": 20, "min_periods": 5, "values": [1.0, 2.0]}


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        ({"values": [1.0, 2.0, 3.0]}, ValueError),
        ({"values": [1.0, math.nan]}, ValueError),
        ({"values": ["x"]}, TypeError),
        ({"values": None}, TypeError),
        ({"window": 1}, ValueError),
        ({"min_periods": "2"}, TypeError),
    ],
)
def test_damaged_state_is_refused(damage, error):
    with pytest.raises(error):
        RollingBaseline.from_state({"window": 2, "min_periods": 2, "values": [1.0], **damage})


@pytest.mark.parametrize("key", ["window", "min_periods", "values"])
def test_incomplete_state_is_refused(key):
    state = RollingBaseline().state()
    del state[key]
    with pytest.raises(KeyError, match=key):
        RollingBaseline.from_state(state)

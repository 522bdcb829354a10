"""What `TrainingHealthMonitor` takes for a number, and how it refuses what is none."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from health_exporter import ModelFlopConfig, TrainingHealthMonitor
from health_exporter.core import argument

NAN, INF = math.nan, math.inf
NO_NUMBERS = ["1.0", b"1", True, np.True_, [1.0], (1.0,), np.array([1.0]), 1j, np.array("1"), {}]
NO_INTEGERS = ["1", True, np.False_, 1.0, np.float64(1.0), np.array([1]), Fraction(1, 2)]


def state_of(monitor):
    return monitor.state_dict(), monitor.report(), monitor.records, monitor.anomalies


def started():
    """Two steps in, so that there is something that a refused step could change."""
    monitor = TrainingHealthMonitor(
        flop_config=ModelFlopConfig(1000, 2, 2, 16, 8), peak_flops_per_sec=1e9
    )
    monitor.observe_step(3, 2.0, grad_norm=1.0, step_time_s=0.1, batch_size=4)
    monitor.observe_step(4, NAN)
    return monitor


def bad_steps():
    for value in NO_INTEGERS:
        yield "step", value, TypeError
        yield "batch_size", value, TypeError
    for value in NO_NUMBERS:
        yield "loss", value, TypeError
        yield "grad_norm", value, TypeError
        yield "step_time_s", value, TypeError
    yield "loss", None, TypeError
    yield "loss", Decimal(1), TypeError
    yield "step", None, TypeError
    yield "step", -1, ValueError
    yield "step", 4, ValueError
    yield "step", 0, ValueError
    yield "batch_size", 0, ValueError
    yield "batch_size", -4, ValueError
    for value in (0, 0.0, -0.5, NAN, INF, -INF):
        yield "step_time_s", value, ValueError
    for value in (-1, -1e-9, np.float32(-2)):
        yield "grad_norm", value, ValueError
    for value in (1, 0, "yes", None, np.int64(1)):
        yield "restart", value, TypeError


@pytest.mark.parametrize(("name", "value", "error"), list(bad_steps()))
def test_a_bad_argument_is_named_with_its_value_and_nothing_is_recorded(name, value, error):
    monitor = started()
    before = state_of(monitor)
    with pytest.raises(error) as caught:
        monitor.observe_step(**{"step": 5, "loss": 1.0, name: value})
    assert caught.type is error
    assert str(caught.value).startswith(f"{name} must be ")
    shown = value if isinstance(value, (int, float, np.floating)) else repr(value)
    assert str(shown) in str(caught.value)
    assert str(state_of(monitor)) == str(before)


@pytest.mark.parametrize("name", ["step", "batch_size"])
def test_integers_beyond_64_bits_are_refused_when_they_come_as_numpy_scalars_do(name):
    with pytest.raises(ValueError, match=f"{name} must fit in 64 bits, got one of 64 bits"):
        argument.integer(np.uint64(2**63), name)


def test_the_largest_integer():
    assert argument.integer(2**63 - 1, "step") == 2**63 - 1
    with pytest.raises(ValueError, match="64 bits"):
        argument.integer(2**63, "step")
    with pytest.raises(ValueError, match="of 33220 bits"):
        argument.integer(10**10_000, "step")


@pytest.mark.parametrize(
    "value", [10**400, Fraction(10**400), 10**10_000], ids=["integer", "fraction", "unprintable"]
)
def test_a_loss_too_large_for_a_float_is_refused(value):
    monitor = started()
    with pytest.raises(ValueError, match="loss is too large for a float"):
        monitor.observe_step(5, value)
    assert len(monitor.records) == 2


def check_number(value):
    monitor = started()
    monitor.observe_step(5, value, grad_norm=value, step_time_s=value)
    record = monitor.records[-1]
    assert (record.loss, record.grad_norm, record.step_time_s) == (2.0, 2.0, 2.0)
    assert [type(record.loss), type(record.grad_norm), type(record.step_time_s)] == [float] * 3


def check_integer(value):
    monitor = started()
    monitor.observe_step(value, 1.0, step_time_s=0.5, batch_size=value)
    assert type(monitor.records[-1].step) is int
    assert monitor.records[-1].step == 7
    assert monitor.report()["n_tokens"] == (4 + 7) * 8


PLAIN = [2, 2.0, Fraction(2), np.float16(2), np.float32(2), np.float64(2), np.longdouble(2)]
ZERO_D = [np.int8(2), np.uint64(2), np.array(2.0), np.array(2), np.array(2.0, dtype=object)]


@pytest.mark.parametrize("value", PLAIN + ZERO_D, ids=repr)
def test_every_kind_of_number_is_a_number(value):
    check_number(value)


@pytest.mark.parametrize("value", [7, np.int8(7), np.uint64(7), np.array(7)], ids=repr)
def test_every_kind_of_integer_is_an_integer(value):
    check_integer(value)


def test_0d_tensors_are_numbers():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64):
        check_number(torch.tensor(2, dtype=dtype))
    check_number(torch.tensor(2.0, requires_grad=True))
    check_number(torch.nn.Parameter(torch.tensor(1.0)) * 2.0)
    check_integer(torch.tensor(7))
    check_integer(torch.tensor(7, dtype=torch.int32))


def test_tensors_that_are_no_numbers_are_refused():
    torch = pytest.importorskip("torch")
    monitor = started()
    for value in (torch.tensor([1.0]), torch.tensor(True), torch.tensor(1j), torch.ones(2)):
        with pytest.raises(TypeError, match="loss must be a real number, got tensor"):
            monitor.observe_step(5, value)
    assert len(monitor.records) == 2


@pytest.mark.parametrize("flag", [np.True_, np.array(True)])
def test_a_flag_of_numpy_is_a_flag(flag):
    monitor = started()
    monitor.observe_step(2, 1.0, restart=flag)
    assert monitor.report()["restarts"]["steps"] == [2]


def test_a_numpy_false_is_no_restart():
    monitor = started()
    with pytest.raises(ValueError, match="unless restart=True"):
        monitor.observe_step(2, 1.0, restart=np.False_)
    monitor.observe_step(5, 1.0, restart=np.False_)
    assert monitor.report()["restarts"]["n"] == 0


@pytest.mark.parametrize("value", [NAN, INF, -INF, np.float32("nan")])
def test_non_finite_losses_and_gradient_norms_are_no_bad_arguments(value):
    monitor = started()
    kinds = [anomaly.kind for anomaly in monitor.observe_step(5, value, grad_norm=value)]
    assert kinds == ["nan_inf_loss", "nan_inf_grad"]


def test_a_gradient_norm_of_zero_is_allowed():
    assert started().observe_step(5, 1.0, grad_norm=0) == []


def test_all_but_step_and_loss_are_keywords():
    with pytest.raises(TypeError, match="positional"):
        started().observe_step(5, 1.0, 1.0)
    with pytest.raises(TypeError, match="positional"):
        TrainingHealthMonitor(None)  # type: ignore[call-arg]


def bad_settings() -> Iterator[tuple[str, object, type[Exception]]]:
    windows = ("loss_window", "loss_min_periods", "grad_window", "grad_min_periods")
    value: object
    for name in windows:
        yield name, 1, ValueError
        yield name, 20.0, TypeError
        yield name, True, TypeError
        yield name, None, TypeError
    for name in ("loss_z_thresh", "grad_z_thresh"):
        for value in (-0.1, NAN, INF):
            yield name, value, ValueError
        for value in ("6", None, True):
            yield name, value, TypeError
    for value in (0, -1.0, NAN, INF):
        yield "peak_flops_per_sec", value, ValueError
    for value in ("989e12", True):
        yield "peak_flops_per_sec", value, TypeError
    yield "rank_heartbeat_threshold", -1, ValueError
    yield "rank_heartbeat_threshold", 1.5, TypeError
    yield "flop_config", {"n_params": 1}, TypeError
    yield "loss_min_periods", 21, ValueError
    yield "grad_min_periods", 21, ValueError


@pytest.mark.parametrize(("name", "value", "error"), list(bad_settings()))
def test_a_bad_setting_is_named_with_its_value(name, value, error):
    with pytest.raises(error) as caught:
        TrainingHealthMonitor(**{name: value})
    assert caught.type is error
    assert str(caught.value).startswith(f"{name} must be ")
    shown = value if isinstance(value, (int, float)) else repr(value)
    assert str(shown) in str(caught.value)


def test_defaults_of_the_specification():
    monitor = TrainingHealthMonitor()
    assert (monitor.flop_config, monitor.peak_flops_per_sec) == (None, None)
    assert (monitor.loss_z_thresh, monitor.grad_z_thresh) == (6.0, 6.0)
    assert monitor.rank_heartbeat_threshold == 50


def test_thresholds_of_zero_are_allowed():
    TrainingHealthMonitor(loss_z_thresh=0, grad_z_thresh=0, rank_heartbeat_threshold=0)

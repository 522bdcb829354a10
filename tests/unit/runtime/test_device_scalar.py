"""Scalars on an accelerator: judged when they have arrived, in order, and none is lost."""

from __future__ import annotations

import math
from typing import Any

import pytest

from health_exporter.runtime.device_scalar import DeviceScalar, on_device
from tests.unit.runtime.conftest import MakeExporter
from tests.unit.runtime.fake_device import Device, FakeTorch, Tensor


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Device:
    """A CUDA device, of a torch that is not there."""
    monkeypatch.setitem(__import__("sys").modules, "torch", FakeTorch)
    return Device("cuda")


@pytest.fixture(params=["xpu", "cuda"])
def device(request: pytest.FixtureRequest) -> Device:
    """One that can be asked whether it is done, and one that cannot."""
    if request.param == "cuda":
        return request.getfixturevalue("cuda")  # type: ignore[no-any-return]
    return Device(request.param)


def steps(exporter: Any) -> list[int]:
    return [record.step for record in exporter.monitor.records]


def test_a_step_is_judged_at_the_next_call(make: MakeExporter, device: Device):
    exporter = make()
    assert exporter.observe_step(1, Tensor(math.nan, device)) == []
    assert steps(exporter) == []
    assert exporter.state == "starting"

    (found,) = exporter.observe_step(2, Tensor(2.0, device))

    assert (found.kind, found.step) == ("nan_inf_loss", 1)
    assert steps(exporter) == [1]
    assert exporter.state == "running"


def test_nothing_is_read_before_it_has_arrived(make: MakeExporter, cuda: Device):
    exporter = make()
    cuda.busy = True
    for step in range(5):
        exporter.observe_step(step, Tensor(float(step), cuda), grad_norm=Tensor(1.0, cuda))
    assert cuda.reads == []

    cuda.busy = False
    exporter.observe_step(5, Tensor(5.0, cuda))

    assert steps(exporter) == [0, 1, 2, 3, 4]


def test_steps_in_flight_are_bounded(make: MakeExporter, cuda: Device):
    exporter = make()
    for step in range(50):
        cuda.busy = True
        exporter.observe_step(step, Tensor(2.0, cuda))

    assert len(steps(exporter)) >= 42


def test_a_number_after_tensors_waits_for_its_turn(make: MakeExporter, device: Device):
    exporter = make()
    exporter.observe_step(1, Tensor(math.nan, device))
    exporter.observe_step(2, Tensor(math.inf, device))
    found = exporter.observe_step(3, math.nan)

    assert [anomaly.step for anomaly in found][-2:] == [2, 3]
    assert steps(exporter) == [1, 2, 3]


def test_only_a_grad_norm_on_the_device(make: MakeExporter, device: Device):
    exporter = make()
    exporter.observe_step(1, 2.0, grad_norm=Tensor(-math.inf, device))
    (found,) = exporter.observe_step(2, 2.0)

    assert (found.kind, found.step) == ("nan_inf_grad", 1)
    assert steps(exporter) == [1, 2]


def test_a_value_is_that_of_its_step_whatever_becomes_of_the_tensor(
    make: MakeExporter, device: Device
):
    exporter = make()
    loss = Tensor(1.0, device)
    for step in range(3):
        loss.value = float(step)  # a trainer that accumulates in place
        exporter.observe_step(step, loss)
    exporter.close()

    assert [record.loss for record in exporter.monitor.records] == [0.0, 1.0, 2.0]


def test_the_end_reads_what_is_in_flight(make: MakeExporter, device: Device):
    exporter = make()
    device.busy = device.type == "cuda"
    for step in range(3):
        exporter.observe_step(step, Tensor(float(step), device))
    exporter.close()

    assert steps(exporter) == [0, 1, 2]
    assert exporter.report()["status"] == "finished"


def test_an_end_in_trouble_does_not_wait_for_the_device(make: MakeExporter, cuda: Device):
    exporter = make()
    exporter.observe_step(0, Tensor(0.0, cuda))
    cuda.busy = True
    exporter.observe_step(1, Tensor(1.0, cuda))
    exporter.close("failed")

    assert cuda.busy
    assert exporter.report()["status"] == "failed"


def test_a_checkpoint_holds_what_is_in_flight(make: MakeExporter, device: Device):
    exporter = make()
    for step in range(3):
        exporter.observe_step(step, Tensor(float(step), device))

    assert exporter.state_dict()["monitor"]["run"]["n_steps"] == 3


@pytest.mark.parametrize("error", [RuntimeError("device lost"), OSError("gone"), ValueError("odd")])
def test_an_error_of_the_device_does_not_reach_the_loop(
    make: MakeExporter, device: Device, error: Exception
):
    exporter = make()
    exporter.observe_step(1, Tensor(1.0, device))
    device.error = error
    exporter.observe_step(2, Tensor(1.0, device))
    exporter.observe_step(3, Tensor(1.0, device))
    exporter.state_dict()
    exporter.close("failed")

    rejected = exporter.report()["rejected_observations"]
    assert sum(rejected.values()) == 3
    assert steps(exporter) == []
    assert exporter.report()["status"] == "failed"


def test_a_refused_step_does_not_hold_up_those_behind(make: MakeExporter, device: Device):
    exporter = make()
    exporter.observe_step(5, Tensor(1.0, device))
    exporter.observe_step(3, Tensor(1.0, device))  # goes back
    exporter.observe_step(6, Tensor(1.0, device))
    exporter.observe_step(7, Tensor(1.0, device))
    exporter.close()

    assert steps(exporter) == [5, 6, 7]
    assert exporter.report()["rejected_observations"]["value"] == 1


def test_a_tensor_of_many_values_is_refused_at_once(make: MakeExporter, device: Device):
    exporter = make()
    exporter.observe_step(1, Tensor(1.0, device, (2,)))

    assert exporter.report()["rejected_observations"]["type"] == 1
    with pytest.raises(TypeError, match=r"loss must be a 0-d tensor, got shape \(2,\)"):
        DeviceScalar(Tensor(1.0, device, (2,)), "loss")


def test_other_ranks_leave_it_where_it_is(make: MakeExporter):
    device = Device()
    exporter = make(rank=1, world_size=2)
    for step in range(3):
        exporter.observe_step(step, Tensor(1.0, device))
    exporter.close()

    assert device.reads == []


@pytest.mark.parametrize("value", [1.0, None, "cpu", b"", object()])
def test_what_is_no_tensor_is_on_no_device(value: object):
    assert not on_device(value)

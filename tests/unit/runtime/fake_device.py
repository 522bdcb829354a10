"""Tensors as of an accelerator, whose copy to the host takes as long as the test says."""

from __future__ import annotations

from typing import Any


class Device:
    """A device of type `kind`; `busy` while its queue is not done."""

    def __init__(self, kind: str = "xpu") -> None:
        self.type = kind
        self.busy = False
        self.reads: list[float] = []
        self.error: Exception | None = None


class Tensor:
    """0-d tensor; a clone keeps the value, whatever becomes of the original."""

    dtype = "float32"

    def __init__(self, value: float, device: Device, shape: tuple[int, ...] = ()) -> None:
        self.value = value
        self.device = device
        self.shape = shape

    def detach(self) -> Tensor:
        return self

    def clone(self) -> Tensor:
        return Tensor(self.value, self.device)

    def item(self) -> float:
        if self.device.error is not None:
            raise self.device.error
        self.device.reads.append(self.value)
        return self.value


class Event:
    """A CUDA event: done when its device is."""

    current: Device

    def __init__(self) -> None:
        self.device = Event.current
        self.waited = False

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return not self.device.busy

    def synchronize(self) -> None:
        self.waited = True
        self.device.busy = False


class _Context:
    def __init__(self, device: Device) -> None:
        Event.current = device

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


class _PinnedHost:
    def __init__(self) -> None:
        self.source: Any = None

    def copy_(self, tensor: Tensor, *, non_blocking: bool) -> None:
        assert non_blocking
        self.source = tensor.clone()

    def item(self) -> float:
        assert not self.source.device.busy, "read before it had arrived"
        return float(self.source.item())


class FakeTorch:
    """What `DeviceScalar` uses of torch for CUDA."""

    class cuda:  # noqa: N801  # torch's name
        Event = Event
        device = _Context

        @staticmethod
        def is_initialized() -> bool:
            return False

    @staticmethod
    def empty(shape: tuple[int, ...], *, dtype: object, pin_memory: bool) -> _PinnedHost:
        assert (shape, pin_memory) == ((), True)
        return _PinnedHost()

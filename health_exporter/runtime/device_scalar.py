"""Scalars on an accelerator, read without making the training thread wait for it.

`tensor.item()` blocks until the device has done everything that was queued before: at each step,
it would empty the pipeline that training fills. The value is copied to the host asynchronously
instead, and read a step later, when it has long arrived.
"""

from __future__ import annotations

import sys
from typing import Any


def on_device(value: object) -> bool:
    """Whether `value` is a tensor whose value the host does not have."""
    kind = getattr(getattr(value, "device", None), "type", "cpu")  # NumPy's device is a string
    return kind != "cpu"


class DeviceScalar:
    """A 0-d tensor on its way to the host.

    Args:
        tensor: 0-d tensor on an accelerator.

    Raises:
        TypeError: It has more than no dimensions.
    """

    __slots__ = ("_event", "_host")

    def __init__(self, tensor: Any, name: str) -> None:
        if tuple(tensor.shape) != ():
            raise TypeError(f"{name} must be a 0-d tensor, got shape {tuple(tensor.shape)}")
        tensor = tensor.detach()
        self._event: Any = None
        if tensor.device.type == "cuda":
            torch = sys.modules["torch"]
            self._host = torch.empty((), dtype=tensor.dtype, pin_memory=True)
            with torch.cuda.device(tensor.device):
                self._host.copy_(tensor, non_blocking=True)
                self._event = torch.cuda.Event()
                self._event.record()
        else:
            # No portable event to ask: a copy on the device, which a step later is most likely
            # done, so that reading it waits for little.
            self._host = tensor.clone()

    def ready(self, *, surely: bool = False) -> bool:
        """Whether `read` returns without waiting; of some devices, with `surely`, nobody knows."""
        if self._event is None:
            return not surely
        return bool(self._event.query())

    def read(self) -> Any:
        """The value as a Python number; waits for it if it must."""
        if self._event is not None:
            self._event.synchronize()
        return self._host.item()

"""What the trainer runs on, without importing a framework or initialising a device for it."""

from __future__ import annotations

import logging
import sys

log = logging.getLogger(__name__)


def framework_name() -> str:
    """The framework and its version, as in `pytorch 2.9.0`; "" where it is not known."""
    torch = sys.modules.get("torch")
    version = getattr(torch, "__version__", None)
    return "" if version is None else f"pytorch {version}"


def device_name() -> str:
    """Name of the accelerator in use; "" while there is none, since asking could initialise it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is not None and cuda.is_initialized():
            return str(cuda.get_device_name())
    except Exception:  # a driver's error, of any type
        log.debug("the accelerator has no name", exc_info=True)
    return ""

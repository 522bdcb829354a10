"""Peak of this CPU, measured."""

from __future__ import annotations

import time

import torch

# Small enough to fit into the time slice of a busy core (a few milliseconds), large enough to reach
# the rate of larger ones.
_SIZE = 512

# Some hundred products on a fast core, a dozen on a slow one.
_SECONDS = 0.4


def measured_peak_flops_per_sec() -> float:
    """FLOPs per second of a float32 matrix product, with the threads that torch now has.

    That of the fastest of many: whatever else the machine does makes a product slower, never
    faster. It is a peak as measured, not the data sheet's.
    """
    a, b, product = (torch.ones(_SIZE, _SIZE) for _ in range(3))
    torch.mm(a, b, out=product)  # the first one also sets up the library
    fastest = float("inf")
    end = time.perf_counter() + _SECONDS
    while (start := time.perf_counter()) < end:
        torch.mm(a, b, out=product)
        fastest = min(fastest, time.perf_counter() - start)
    return 2 * _SIZE**3 / fastest  # a multiply and an add for each term

"""What the page at `/` costs: milliseconds and bytes a load, and what it costs a training step.

Required: below 20 ms a load at any number of ranks, and well below 1 us a step.
"""

from __future__ import annotations

import gc
import gzip
import time

import pytest

from health_exporter.export.history import History
from health_exporter.export.page import status_page
from health_exporter.snapshot import StepView
from tests.unit.export.golden_page import STEP
from tests.unit.export.page_scene import Scene

# Far above what is required (see the top), which a busy machine may not keep.
MOST_MS = 100.0
MOST_US = 5.0


@pytest.mark.parametrize("n_ranks", [8, 1_024, 16_384])
@pytest.mark.parametrize("how", ["healthy", "a host dead"])
def test_a_load(n_ranks: int, how: str, quick: bool) -> None:
    scene = Scene(n_ranks).train(range(800 if quick else 6_000))
    dead = range(n_ranks // 2, n_ranks // 2 + 8) if how == "a host dead" else ()
    scene.beat(60, silent=[rank for rank in dead if rank < n_ranks])
    view = scene.view()
    durations, spent = [], []
    for _ in range(3 if quick else 40):
        began, worked = time.perf_counter(), time.thread_time()
        page = status_page(view).encode()
        durations.append(time.perf_counter() - began)
        spent.append(time.thread_time() - worked)
    median_ms, cpu_ms = (1e3 * sorted(each)[len(each) // 2] for each in (durations, spent))
    small = len(gzip.compress(page, 6))
    print(
        f"\n{n_ranks:>6} ranks, {how:<11}: {median_ms:5.1f} ms (CPU {cpu_ms:.1f} ms), "
        f"{len(page):>7,} bytes, {small:>6,} compressed (required: 20 ms)"
    )
    assert median_ms < MOST_MS


def cost_us(history: History, views: list[StepView]) -> float:
    """Microseconds a step, the folding of old steps included, the loop's own cost not."""
    clock = time.perf_counter
    add = history.add
    began = clock()
    for view in views:
        add(view, 0.5, False)
    total = clock() - began
    began = clock()
    for _ in views:
        pass
    return 1e6 * (total - (clock() - began)) / len(views)


def test_a_step(quick: bool) -> None:
    n = 2_000 if quick else 20_000
    views = [STEP._replace(step=step, loss=2.0 + step % 7) for step in range(n)]
    history = History()
    first = cost_us(history, views)
    gc.collect()
    later = min(cost_us(history, views) for _ in range(2 if quick else 8))
    print(f"\nhistory: {first:.2f} us a step at first, {later:.2f} us later (required: below 1 us)")
    assert later < MOST_US

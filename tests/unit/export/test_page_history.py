"""The curves of a run of any length: bounded, no spike lost, no step twice."""

from __future__ import annotations

import json
import math
import threading
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from health_exporter.export.history import SERIES, Column, History, as_table
from health_exporter.snapshot import StepView
from tests.unit.export.golden_page import EMPTY_STEP

LOSS, GRAD = SERIES.index("loss"), SERIES.index("grad_norm")
SECONDS = SERIES.index("step_time_s")


def view(step: int, loss: float = 1.0, **changes: object) -> StepView:
    return EMPTY_STEP._replace(step=step, loss=loss, **changes)  # type: ignore[arg-type]


def filled(
    n: int, spikes: dict[int, float] | None = None, restarts: tuple[int, ...] = ()
) -> History:
    history, begun = History(), frozenset(restarts)
    for step in range(n):
        history.add(view(step, (spikes or {}).get(step, 1.0)), 0.5, step in begun)
    return history


def bounds(columns: list[Column], series: int = LOSS) -> tuple[float, float]:
    known = [column.ranges[series] for column in columns if column.ranges[series]]
    return min(r[0] for r in known if r), max(r[1] for r in known if r)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 9_000), most=st.integers(50, 400), data=st.data())
def test_every_step_is_in_one_column_and_every_spike_in_its_range(n: int, most: int, data):
    spikes = data.draw(st.dictionaries(st.integers(0, n - 1), st.floats(2.0, 1e9), max_size=3))
    columns = filled(n, spikes).whole(most)

    assert sum(column.n for column in columns) == n
    assert columns[0].first_step == 0
    assert columns[-1].last_step == n - 1
    for before, after in pairwise(columns):
        assert after.first_step == before.last_step + 1
    assert bounds(columns)[1] == max([*spikes.values(), 1.0])
    assert len(columns) < 1.6 * most + 20


def test_a_spike_of_one_step_in_a_hundred_thousand_stays():
    history = filled(100_000, {777: 55.0, 99_000: -3.0})

    columns = history.whole(180)
    assert len(columns) < 300
    assert bounds(columns) == (-3.0, 55.0)
    (spiked,) = (column for column in columns if bounds([column])[1] == 55.0)
    assert spiked.first_step <= 777 <= spiked.last_step


def test_memory_does_not_grow():
    history = filled(20_000)
    tracemalloc.start()
    try:
        for step in range(20_000, 50_000):
            history.add(view(step), 0.5, False)
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


def test_the_newest_steps_are_kept_one_by_one():
    columns = filled(5_000).recent(1_000)

    assert 512 <= len(columns) < 640
    assert all(column.n == 1 for column in columns)
    assert columns[-1].last_step == 4_999


def test_no_column_bridges_a_resume():
    history = filled(20_000, restarts=(7_003, 19_900))
    columns = history.whole(180)

    begun = [column.first_step for column in columns if column.restart]
    assert begun == [7_003, 19_900]


def test_a_run_of_nothing_but_resumes_is_bounded_too():
    history = filled(30_000, restarts=tuple(range(0, 30_000, 3)))

    assert sum(column.n for column in history.whole(180)) == 30_000
    assert len(history.whole(180)) < 1_500


def test_what_is_unknown_or_no_number_is_left_out():
    history = History()
    history.add(view(0, math.nan, grad_norm=None), None, False)
    history.add(view(1, 2.0, grad_norm=math.inf), None, False)
    history.add(view(2, 4.0, grad_norm=3.0), 0.25, False)
    (column,) = history.whole(1)

    assert column.ranges[LOSS] == (2.0, 4.0, 3.0)
    assert column.ranges[GRAD] == (3.0, 3.0, 3.0)
    assert column.ranges[SECONDS] == (0.25, 0.25, 0.25)
    assert history.last_step_time_s == 0.25


def test_the_mean_is_of_the_steps():
    history = History()
    for step in range(3_000):
        history.add(view(step, float(step)), None, False)
    columns = history.whole(100)

    means = [(column.ranges[LOSS] or (0.0, 0.0, 0.0))[2] for column in columns]
    total = sum(mean * column.n for mean, column in zip(means, columns, strict=True))
    assert total / 3_000 == pytest.approx(1_499.5)


def test_a_baseline_has_its_edge_in_the_units_of_the_loss():
    history = History()
    history.add(view(0, 2.0, loss_judged=(1.5, 0.25, 2.0), loss_threshold=4.0), None, False)
    (column,) = history.whole(10)

    assert (column.centre, column.edge) == (1.5, 2.5)
    assert column.ranges[SERIES.index("loss_z_to_threshold")] == (0.5, 0.5, 0.5)


def test_a_table_of_it_is_strict_json_of_equal_lengths():
    table = as_table(filled(3_000, {5: math.inf, 6: math.nan}).whole(300))

    assert len({len(values) for values in table.values()}) == 1
    json.dumps(table, allow_nan=False)


def test_a_reader_beside_the_training_thread_sees_each_step_once():
    history = History()
    stop = threading.Event()

    def train() -> None:
        step = 0
        while not stop.is_set():
            history.add(view(step), 0.5, False)
            step += 1

    thread = threading.Thread(target=train)
    thread.start()
    try:
        read = 0
        while read < 50 or not history.has_older:
            columns = history.whole(180)
            if columns:
                assert sum(column.n for column in columns) == columns[-1].last_step + 1
                read += 1
    finally:
        stop.set()
        thread.join()

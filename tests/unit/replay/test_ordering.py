"""What is made of steps that do not come one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from health_exporter.core.monitor import TrainingHealthMonitor
from health_exporter.replay.judging import Judging
from health_exporter.replay.ordering import Ordering, Step
from health_exporter.replay.row import Row


def rows(*steps: int | str, loss: float = 2.0) -> list[Row]:
    """A row for each number; a text is a resume line before the next one."""
    found = []
    resumed = ""
    for item in steps:
        if isinstance(item, str):
            resumed = item
        else:
            found.append(Row(item, loss, resumed=resumed))
            resumed = ""
    return found


def ordered(given_rows: Iterable[Row]) -> tuple[list[Step], Ordering]:
    ordering = Ordering()
    return list(ordering.steps(given_rows)), ordering


def told(steps: list[Step]) -> list[tuple[int, str]]:
    return [
        (step.row.step, "launch" if step.launch else "restart" if step.restart else "")
        for step in steps
    ]


def test_a_step_that_goes_back_and_on_from_there_is_a_restart() -> None:
    steps, ordering = ordered(rows(10, 20, 30, 40, 30, 40, 50))
    assert told(steps)[3:] == [(40, ""), (30, "restart"), (40, ""), (50, "")]
    assert ordering.n_out_of_order == 0


def test_a_late_line_is_no_restart() -> None:
    steps, ordering = ordered(rows(10, 20, 30, 40, 30, 50, 60))
    assert [step.row.step for step in steps] == [10, 20, 30, 40, 50, 60]
    assert ordering.n_out_of_order == 1


def test_eight_ranks_that_print_the_same_steps() -> None:
    printed = [n for n in range(1, 6) for _ in range(8)]
    printed[15], printed[16] = printed[16], printed[15]  # the last of step 2 comes after a 3
    steps, ordering = ordered(rows(*printed))
    assert told(steps) == [(1, "launch"), (2, ""), (3, ""), (4, ""), (5, "")]
    assert ordering.n_duplicates + ordering.n_out_of_order == 35


def test_a_resume_line_is_a_restart_also_where_the_step_goes_on() -> None:
    steps, _ = ordered(rows(10, 20, "loading checkpoint", 30, 40))
    assert told(steps) == [(10, "launch"), (20, ""), (30, "restart"), (40, "")]


def test_a_resume_line_at_the_same_step_is_a_restart() -> None:
    steps, _ = ordered(rows(10, 20, "loading checkpoint", 20, 30))
    assert told(steps)[2] == (20, "restart")


def test_a_checkpoint_older_than_the_log() -> None:
    steps, _ = ordered(rows(7000, 7010, 7020, 6900, 6910, 6920))
    assert told(steps)[3] == (6900, "restart")


def test_back_to_the_start_is_another_launch() -> None:
    steps, _ = ordered(rows(0, 10, 20, 30, 0, 10, 20))
    assert told(steps)[4] == (0, "launch")


def test_crashes_in_a_row() -> None:
    steps, _ = ordered(rows(10, 20, 30, 40, 50, 30, 40, 30, 40, 50, 60))
    assert [step for step, what in told(steps) if what == "restart"] == [30, 30]


def test_two_launches_that_write_to_one_file() -> None:
    mixed = [step for pair in zip(range(1000, 1100), range(50, 150), strict=True) for step in pair]
    steps, ordering = ordered(rows(*mixed))
    assert [step.row.step for step in steps] == list(range(1000, 1100))
    assert ordering.n_out_of_order == 100


def test_rows_of_one_step_complete_each_other() -> None:
    found, ordering = ordered(
        [Row(1, 2.5), Row(1, None, grad_norm=1.5), Row(2, None, grad_norm=1.0), Row(3, 2.4)]
    )
    assert [(s.row.step, s.row.grad_norm) for s in found] == [(1, 1.5), (3, None)]
    assert ordering.n_without_loss == 1


def test_a_loss_that_is_no_number_on_any_rank_counts() -> None:
    found, _ = ordered([Row(1, 2.5), Row(1, math.nan), Row(1, 2.5)])
    assert found[0].row.loss is not None
    assert math.isnan(found[0].row.loss)


def test_step_times_from_dates() -> None:
    found, _ = ordered([Row(10, 2.0, time=100.5), Row(20, 2.0, time=103.25)])
    assert [s.step_time_s for s in found] == [None, 0.275]


def test_dates_in_whole_seconds_are_no_clock_for_short_steps() -> None:
    found, _ = ordered([Row(1, 2.0, time=100.0), Row(2, 2.0, time=101.0)])
    assert [s.step_time_s for s in found] == [None, None]


def test_values_that_cannot_be_are_left_out() -> None:
    found, ordering = ordered([Row(1, 2.0, -1.0, -5.0), Row(2, 2.0, 1.0, math.nan)])
    assert [(s.row.grad_norm, s.step_time_s) for s in found] == [(None, None), (1.0, None)]
    assert ordering.n_unusable == 3


any_rows = st.lists(
    st.builds(
        Row,
        step=st.integers(0, 30),
        loss=st.none() | st.floats(),
        grad_norm=st.none() | st.floats(),
        step_time_s=st.none() | st.floats(),
        time=st.none() | st.floats(0, 1e10),
        resumed=st.sampled_from(["", "", "", "loaded"]),
    ),
    max_size=60,
)


@given(any_rows)
def test_the_monitor_takes_whatever_order_rows_come_in(given_rows: list[Row]) -> None:
    ordering = Ordering()
    judging = Judging(TrainingHealthMonitor.production)
    judging.run(ordering.steps(given_rows))
    with_loss = [row for row in given_rows if row.loss is not None]
    left_out = ordering.n_duplicates + ordering.n_out_of_order
    assert judging.n_steps + left_out == len(with_loss)


@given(st.lists(st.integers(0, 10**6), unique=True, max_size=50).map(sorted))
def test_rising_steps_all_count(steps: list[int]) -> None:
    found, ordering = ordered(rows(*steps))
    assert [step.row.step for step in found] == steps
    assert all(not step.restart for step in found)
    assert ordering.n_duplicates == ordering.n_out_of_order == 0

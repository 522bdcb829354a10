"""Time in steps that counted, against a sum over the steps that were not done again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from health_exporter.core.goodput import Goodput


class Every:
    """Keeps every step: what the marks stand for."""

    def __init__(self) -> None:
        self.seconds: dict[int, float] = {}

    def add(self, step: int, seconds: float) -> None:
        self.seconds[step] = seconds

    def rewind(self, step: int) -> None:
        self.seconds = {at: s for at, s in self.seconds.items() if at < step}

    @property
    def productive_s(self) -> float:
        return sum(self.seconds.values())


@settings(deadline=None, max_examples=50)
@given(
    first=st.integers(0, 5000),
    attempts=st.lists(st.tuples(st.integers(1, 400), st.floats(0, 1)), min_size=1, max_size=4),
    even=st.booleans(),
)
def test_a_resume_takes_out_what_is_done_again(first, attempts, even):
    goodput, every = Goodput(), Every()
    step = first
    n_steps = 0
    for length, back in attempts:
        for _ in range(length):
            n_steps += 1
            seconds = 1.0 if even else 0.5 + step % 3
            goodput.add(step, seconds)
            every.add(step, seconds)
            step += 1
        step -= round(back * (step - first))
        goodput.rewind(step)
        every.rewind(step)
        # While every step is marked it is exact; later, interpolated within a hundredth of the run.
        rel, least = (1e-9, 1e-9) if n_steps <= 512 else (0.02, 3.0)
        assert goodput.productive_s == pytest.approx(every.productive_s, rel=rel, abs=least)
        goodput = Goodput.from_state(json.loads(json.dumps(goodput.state())))


@pytest.mark.parametrize("first", [0, 1, 777, 100_000])
@pytest.mark.parametrize("back_to", [0, 1, 10, 1000, 5000, 9999])
def test_in_a_long_run_too(first, back_to):
    """Marks have become sparse; steps of even length are interpolated exactly."""
    goodput = Goodput()
    for step in range(first, first + 10_000):
        goodput.add(step, 0.5)
    goodput.rewind(first + back_to)

    assert goodput.productive_s == pytest.approx(0.5 * back_to, abs=1e-6)


def test_gaps_in_the_steps_count_no_time():
    goodput = Goodput()
    for step in range(0, 100, 10):
        goodput.add(step, 1.0)
    goodput.rewind(50)

    assert goodput.productive_s == pytest.approx(5.0, abs=1.0)


def test_a_resume_ahead_takes_nothing_out():
    goodput = Goodput()
    goodput.add(5, 1.0)
    goodput.rewind(6)
    goodput.rewind(600)

    assert goodput.productive_s == 1.0


def test_before_the_first_step_there_is_nothing_to_take_out():
    goodput = Goodput()
    goodput.rewind(0)
    assert goodput.productive_s == 0.0
    goodput.add(5, 1.0)
    goodput.rewind(2)
    assert goodput.productive_s == 0.0


def test_nothing_grows_with_the_number_of_steps():
    goodput = Goodput()
    for step in range(100_000):
        goodput.add(step, 1.0)

    assert len(goodput.state()["marks"]) <= 512


@pytest.mark.parametrize("key", ["productive_s", "last_step", "before_first", "every", "marks"])
@pytest.mark.parametrize("wrong", [None, "x", float("inf"), float("nan"), -2, {"a": 1}, [1], True])
def test_a_damaged_state_is_refused(key, wrong):
    state = Goodput().state()
    with pytest.raises((KeyError, TypeError, ValueError)):
        Goodput.from_state({**state, key: wrong})
    del state[key]
    with pytest.raises(KeyError):
        Goodput.from_state(state)

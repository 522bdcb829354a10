"""Whom the ranks wait for when all of them stand still."""

from __future__ import annotations

from dataclasses import replace

import pytest

from health_exporter.core.beat import Beat
from health_exporter.core.culprit import culprits

WAITS = Beat(
    rank=0,
    host="node-0",
    address="node-0:19400",
    pid=1,
    beats=9,
    progress=9,
    step=100,
    phase="",
    state="running",
    still_s=40.0,
    timeout_s=30.0,
    where="train.py:80 all_reduce",
)
"""In the collective, of a program that marks nothing."""

LOADS = replace(WAITS, phase="data", marks=1, where="train.py:12 load_batch")
WAITS_MARKED = replace(WAITS, phase="backward", marks=5)
"""In the collective, of a program in which every rank marks data, forward and backward."""


def blamed(*stuck: Beat, places: bool = True) -> list[int]:
    """The ranks to blame, counted from 0 in the order given."""
    ranks = [replace(beat, rank=rank) for rank, beat in enumerate(stuck)]
    if not places:
        ranks = [replace(beat, where="") for beat in ranks]
    return [beat.rank for beat in culprits(ranks)]


either_way = pytest.mark.parametrize("places", [True, False], ids=["places", "no places"])


# Every rank marks the same phases


@either_way
@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_the_rank_that_hangs_in_its_data(world_size: int, places: bool):
    waiting = [WAITS_MARKED] * (world_size - 1)
    assert blamed(LOADS, *waiting, places=places) == [0]


@either_way
@pytest.mark.parametrize("n_waiting", [4, 2, 1], ids=["half", "more than half", "most"])
def test_all_that_hang_in_their_data_are_to_blame(n_waiting: int, places: bool):
    assert blamed(*[LOADS] * 4, *[WAITS_MARKED] * n_waiting, places=places) == [0, 1, 2, 3]


def test_of_many_in_their_data_the_one_in_another_place():
    receives = replace(LOADS, where="train.py:15 broadcast")
    assert blamed(WAITS_MARKED, receives, receives, receives, receives, LOADS) == [5]


@either_way
def test_half_that_hang_before_their_first_mark(places: bool):
    logs = replace(WAITS, where="train.py:95 log")
    assert blamed(logs, logs, WAITS_MARKED, WAITS_MARKED, places=places) == [0, 1]
    assert blamed(logs, WAITS_MARKED, places=places) == [0]


def test_one_that_hangs_before_data_that_the_others_share():
    logs = replace(WAITS, where="train.py:95 log")
    receives = replace(LOADS, where="train.py:15 broadcast")
    assert blamed(receives, receives, logs, receives) == [2]


# Only some ranks mark


@either_way
@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_the_one_rank_that_marks_hangs_in_its_data(world_size: int, places: bool):
    waiting = [WAITS] * (world_size - 1)
    assert blamed(*waiting, LOADS, places=places) == [world_size - 1]


@either_way
def test_a_whole_node_of_two_that_alone_marks_hangs_in_its_data(places: bool):
    assert blamed(*[WAITS] * 4, *[LOADS] * 4, places=places) == [4, 5, 6, 7]


def test_ranks_that_mark_another_phase_than_data_and_stand_elsewhere():
    hangs = replace(WAITS, phase="forward", marks=1, where="train.py:30 forward")
    assert blamed(WAITS, WAITS, hangs, WAITS, WAITS, hangs) == [2, 5]


def test_a_majority_with_fewer_marks_is_not_accused_where_nothing_else_tells():
    hangs = replace(WAITS, phase="forward", marks=1)
    assert blamed(WAITS, WAITS, hangs, WAITS) == []
    assert blamed(WAITS, WAITS, hangs, WAITS, places=False) == []


def test_a_second_phase_in_the_step_that_one_rank_alone_marks():
    waits, loads_again = replace(WAITS, marks=2), replace(LOADS, marks=3)
    assert blamed(waits, loads_again, waits, waits) == [1]


def test_a_phase_within_the_data_that_only_the_one_that_loads_for_all_marks():
    receives = replace(LOADS, where="train.py:15 broadcast")
    assert blamed(replace(LOADS, marks=2), receives, receives, receives) == [0]


def test_one_that_waits_in_a_place_of_its_own_is_not_taken_for_the_one_that_loads():
    receives = replace(WAITS, where="train.py:15 broadcast")
    assert blamed(WAITS, WAITS, receives, LOADS, WAITS, WAITS) == [3]


@either_way
def test_where_every_other_rank_loads_for_its_neighbour_the_one_that_hangs(places: bool):
    reads, receives = replace(WAITS, marks=5), replace(WAITS, marks=3)
    for_data = replace(WAITS, where="train.py:15 broadcast")
    assert blamed(reads, receives, LOADS, for_data, reads, receives, places=places) == [2]


def test_a_few_that_mark_less_wait_where_most_do():
    # Ranks 0 and 1 mark no data.
    few, waits = replace(WAITS, marks=3), replace(WAITS, marks=5)
    hangs = replace(WAITS, marks=5, where="train.py:90 log")
    assert blamed(few, few, waits, waits, hangs, waits) == [4]


def test_one_that_waits_where_those_ahead_wait_is_not_taken_for_one_that_hangs():
    hangs = replace(WAITS, where="train.py:90 log")
    assert blamed(WAITS, hangs, hangs, replace(WAITS, marks=2)) == []


def test_a_rank_that_alone_marks_the_data_that_all_wait_for_together():
    gives = replace(WAITS, phase="data", marks=1)
    hangs = replace(WAITS, where="train.py:90 log")
    assert blamed(gives, WAITS, WAITS, hangs) == [3]
    assert blamed(gives, WAITS, WAITS, WAITS) == []


# No marks


def test_without_marks_those_in_another_place_than_most():
    hangs = replace(WAITS, where="train.py:12 load_batch")
    assert blamed(WAITS, WAITS, hangs, WAITS, WAITS, hangs) == [2, 5]


def test_without_marks_nothing_tells_two_halves_apart():
    hangs = replace(WAITS, where="train.py:12 load_batch")
    assert blamed(WAITS, hangs) == []
    assert blamed(WAITS, WAITS, hangs, hangs) == []
    assert blamed(WAITS, WAITS, WAITS, places=False) == []


@pytest.mark.parametrize("phase", ["checkpoint", "eval"])
def test_a_few_in_a_pause_of_their_own(phase: str):
    pauses = replace(WAITS, phase=phase, where="train.py:70 pause")
    assert blamed(pauses, WAITS, WAITS, places=False) == [0]
    assert blamed(pauses, WAITS, places=False) == []


# Steps


def test_most_that_are_a_step_behind_are_those_to_blame():
    ahead = replace(WAITS, step=101)
    assert blamed(WAITS, WAITS, ahead, places=False) == [0, 1]


def test_a_rank_ahead_by_a_step_is_not_to_blame_for_its_place():
    ahead = replace(WAITS, step=101, phase="data", marks=1, where="train.py:12 load_batch")
    hangs = replace(WAITS, where="train.py:90 log")
    assert blamed(ahead, WAITS, WAITS, hangs) == [3]


def test_a_few_a_step_behind_are_to_blame_wherever_they_are():
    behind, elsewhere = replace(WAITS, step=99), replace(WAITS, where="train.py:90 log")
    assert blamed(behind, WAITS, WAITS, elsewhere, WAITS) == [0]

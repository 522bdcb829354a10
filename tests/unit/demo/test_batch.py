from __future__ import annotations

import pytest
import torch

from health_exporter.demo.batch import Batches

TEXT = bytes(range(256)) * 20


def batches(seed: int = 0, rank: int = 0, text: bytes = TEXT) -> Batches:
    return Batches(text, batch_size=8, seq_len=16, seed=seed, rank=rank)


def test_each_sequence_is_a_stretch_of_the_text():
    batch = batches().batch(3)

    assert batch.shape == (8, 17)
    assert all(bytes(row.tolist()) in TEXT for row in batch)


def test_a_step_gives_the_same_batch_again():
    assert torch.equal(batches().batch(7), batches().batch(7))


@pytest.mark.parametrize(
    ("other", "step"), [(batches(), 8), (batches(rank=1), 7), (batches(seed=1), 7)]
)
def test_another_step_rank_or_seed_gives_another_batch(other: Batches, step: int):
    assert not torch.equal(batches().batch(7), other.batch(step))


def test_a_batch_has_a_sequence_of_each_part_of_the_text():
    parts = Batches(
        b"".join(bytes([i]) * 1000 for i in range(8)), batch_size=8, seq_len=16, seed=0, rank=0
    )

    assert parts.batch(0)[:, 0].tolist() == list(range(8))


def test_a_text_of_one_window_is_enough():
    assert batches(text=TEXT[:17]).batch(0).tolist() == [list(range(17))] * 8


def test_a_text_shorter_than_a_window_is_refused():
    with pytest.raises(ValueError, match="16 bytes, got 16"):
        batches(text=TEXT[:16])

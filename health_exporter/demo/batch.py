"""Batches of text. B sequences, T tokens."""

from __future__ import annotations

import random

import torch


class Batches:
    """Random windows of a text; which ones follows from the seed, the step and the rank alone.

    Each is from another stretch of the text, so that every batch has a bit of everything and the
    loss of one is like that of the next.

    The position in the data is therefore the step: a resumed run that knows its step sees the
    batches that the interrupted one would have seen.

    Args:
        text: Bytes of the text, more than `seq_len`.
        batch_size: Windows in a batch (B).
        seq_len: Tokens that a window predicts (T); it is one longer than that.
        seed: Of the run.
        rank: This process.

    Raises:
        ValueError: The text is too short for one window.
    """

    def __init__(self, text: bytes, *, batch_size: int, seq_len: int, seed: int, rank: int) -> None:
        if len(text) <= seq_len:
            raise ValueError(f"text must be longer than {seq_len} bytes, got {len(text)}")
        # A copy: a tensor over immutable bytes could be written to.
        self._windows = torch.frombuffer(bytearray(text), dtype=torch.uint8).unfold(
            0, seq_len + 1, 1
        )
        self._batch_size = batch_size
        self._seed = seed
        self._rank = rank
        self._generator = torch.Generator()

    def batch(self, step: int) -> torch.Tensor:
        """Tokens of a step, int64, shape (B, T + 1): inputs and targets, one apart."""
        seed = random.Random(f"{self._seed}/{self._rank}/{step}").getrandbits(63)
        self._generator.manual_seed(seed)
        at = torch.rand(self._batch_size, dtype=torch.float64, generator=self._generator)
        stretches = (torch.arange(self._batch_size) + at) / self._batch_size
        return self._windows[(stretches * len(self._windows)).long()].long()

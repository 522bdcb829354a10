"""Checkpoints: all that a resumed run needs to go on as if nothing had been."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from health_exporter.runtime.atomic_file import replacing


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """State of a run between two steps."""

    next_step: int
    """First step that it does not hold; also the position in the data."""

    model: dict[str, Any]
    optimizer: dict[str, Any]
    scheduler: dict[str, Any]

    rng: torch.Tensor
    """State of torch's generator on rank 0."""

    health: dict[str, Any]
    """The exporter's `state_dict()`: what the losses were like before."""

    def save(self, path: Path) -> None:
        """Write it, so that at any moment either the old file or the new one is there, whole."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        with replacing(path, sync=True) as file:
            torch.save(fields, file)

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read what `save` has written; nothing in the file is executed."""
        return cls(**torch.load(path, map_location="cpu", weights_only=True))

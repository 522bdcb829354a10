"""Megatron-LM and its forks: `iteration 10/ 100 | ... | lm loss: 1.0E+01 | grad norm: 1.2 |`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from health_exporter.replay.number import NUMBER
from health_exporter.replay.text import DamagedLineError, Fields, TextReader

_START = re.compile(r"\biteration\s+(\d+)\s*/\s*\d+\s*\|")
_HALLMARK = "elapsed time per iteration"
_VALUE = re.compile(rf"\s*({NUMBER})(?=[\s/|]|$)", re.IGNORECASE)

# Of several losses the first that is there: the model's own comes before its auxiliary ones.
_LOSSES = ("lm loss", "loss", "mlm loss", "reduced_train_loss")
_NOT_THE_LOSS = ("scale", "balancing", "mtp", "z_loss", "z loss", "aux", "validation")


class MegatronReader(TextReader):
    """Megatron-LM, Megatron-DeepSpeed and NeMo's Megatron lines."""

    name = "megatron"
    title = "Megatron-LM text"
    certain = 0.98

    def __init__(self, mapping: Mapping[str, str]) -> None:
        super().__init__(mapping)
        self._loss = mapping.get("loss")

    def prepare(self, head: list[str]) -> None:
        """Which of the losses is the model's?"""
        for line in head:
            if self._loss is None and _START.search(line) and _HALLMARK in line:
                self._loss = _guess_loss(_pairs(line))

    def columns(self) -> dict[str, str]:
        """Field to the words that it stands behind."""
        return {
            "step": "iteration",
            "loss": self._loss or "lm loss",
            "grad_norm": "grad norm",
            "step_time_s": "elapsed time per iteration (ms)",
            "lr": "learning rate",
        }

    def parse(self, text: str) -> Fields | None:
        """The row on a line. An interval whose every step was skipped by the loss scaler has no
        loss.
        """
        if "iteration" not in text:
            return None
        start = _START.search(text)
        if start is None:
            return None
        if _HALLMARK not in text:
            if "loss at iteration" in text:
                return None
            raise DamagedLineError("an iteration that cannot be read to its end")
        skipped = int(_after(text, "number of skipped iterations") or 0)
        if self._loss is None:
            self._loss = _guess_loss(_pairs(text[start.end() :]))
        loss = None if self._loss is None else _after(text, self._loss)
        if loss is None and not skipped:
            raise DamagedLineError("an iteration without a loss that can be read")
        milliseconds = _after(text, "elapsed time per iteration (ms)")
        return Fields(
            int(start.group(1)),
            loss,
            _after(text, "grad norm"),
            milliseconds * 1e-3 if milliseconds else None,
            _after(text, "learning rate"),
            skipped,
        )


def _pairs(text: str) -> dict[str, str]:
    pairs = {}
    for part in text.split("|"):
        key, colon, value = part.partition(":")
        if colon:
            pairs[key.strip()] = value
    return pairs


def _guess_loss(pairs: Mapping[str, str]) -> str | None:
    for name in _LOSSES:
        if name in pairs:
            return name
    for name in pairs:
        if "loss" in name and not any(word in name for word in _NOT_THE_LOSS):
            return name
    return None


def _after(text: str, key: str) -> float | None:
    """The number behind a key; of `12.3/14.5` (now and on average) the first."""
    start = text.find(f"| {key}:")
    if start < 0:
        return None
    match = _VALUE.match(text, start + len(key) + 3)
    return None if match is None else float(match.group(1))

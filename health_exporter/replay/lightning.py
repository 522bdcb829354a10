"""Lightning's progress bar: `Epoch 0: 45%|... | 45/100 [00:10<00:12, 4.50it/s, train_loss=2.3]`."""

from __future__ import annotations

import re

from health_exporter.replay.number import NUMBER
from health_exporter.replay.text import DamagedLineError, Fields, TextReader

_BAR = re.compile(r"\bEpoch\s+(\d+)(?:/\d+)?\s*:?\s.*?\b(\d+)/(\d+)\s")
# NeMo's bars show a running mean as `loss` beside the step's own.
_TRAIN_LOSS = re.compile(
    rf"\b(?:reduced_)?train(?:ing)?[_/ ]?loss(?:_step)?\s*[=:]\s*({NUMBER})(?![\w.])", re.IGNORECASE
)
_LOSS = re.compile(rf"\bloss(?:_step)?\s*[=:]\s*({NUMBER})(?![\w.])", re.IGNORECASE)
_OTHER_LOSS = re.compile(r"\b(?:val|valid|validation|test|eval)[\w/ ]*loss", re.IGNORECASE)
_NORM = re.compile(rf"\b(?:grad(?:ient)?_?norm\w*)\s*[=:]\s*({NUMBER})(?![\w.])", re.IGNORECASE)
_SPEED = re.compile(r"\b(\d+(?:\.\d+)?)\s*(it/s|s/it)\b")
_TIMING = re.compile(r"\btrain_step_timing in s\s*[=:]\s*(\d+(?:\.\d+)?)(?![\w.])")
_DAMAGED = re.compile(r"loss(?:_step)?\s*[=:]\s*(?:$|[^\s\d.+\-nNiI])")


class LightningReader(TextReader):
    """Lightning's progress bars, tqdm's and rich's, with a training loss on them.

    Steps are counted through the epochs: the batches of the epochs before, and the batch.
    """

    name = "lightning"
    title = "Lightning progress bar"

    def columns(self) -> dict[str, str]:
        """Field to the words that it stands behind."""
        return {
            "step": "Epoch and batch",
            "loss": "train_loss, reduced_train_loss or loss",
            "step_time_s": "train_step_timing or it/s",
            "grad_norm": "grad_norm",
        }

    def parse(self, text: str) -> Fields | None:
        """The row that one state of the bar shows."""
        if "Epoch" not in text or "loss" not in text:
            return None
        bar = _BAR.search(text)
        if bar is None or not ("it/s" in text or "s/it" in text or "<" in text):
            return None
        match = _TRAIN_LOSS.search(text, bar.end()) or _LOSS.search(text, bar.end())
        if match is None:
            if _DAMAGED.search(text, bar.end()) and not _OTHER_LOSS.search(text):
                raise DamagedLineError("a progress bar whose loss cannot be read")
            return None
        epoch, batch, batches = (int(group) for group in bar.groups())
        norm = _NORM.search(text, bar.end())
        speed = _SPEED.search(text, bar.end())
        timing = _TIMING.search(text, bar.end())
        seconds = None if timing is None else float(timing.group(1))
        if seconds is None and speed is not None and float(speed.group(1)) > 0.0:
            rate = float(speed.group(1))
            seconds = 1.0 / rate if speed.group(2) == "it/s" else rate
        return Fields(
            epoch * batches + batch,
            float(match.group(1).replace(",", "")),
            None if norm is None else float(norm.group(1).replace(",", "")),
            seconds,
        )

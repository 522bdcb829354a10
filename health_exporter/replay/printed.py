"""What the Hugging Face Trainer prints: `{'loss': 2.3, 'grad_norm': 1.2, 'epoch': 0.1}`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from health_exporter.replay.number import number
from health_exporter.replay.text import DamagedLineError, Fields, TextReader

_DICT = re.compile(r"\{'(?:[^{}])*\}?")
_BAR = re.compile(r"\|\s*(\d+)/(\d+)\s*\[")
_NONFINITE = re.compile(r"(?<=[ :])(-?)(nan|inf)(?=[,}\s])")
_NAMES = {"nan": "NaN", "inf": "Infinity"}


class PrintedReader(TextReader):
    """Lines of `log_history` as the Hugging Face Trainer prints them, without a step of their own.

    Where a progress bar runs along, it tells the step; otherwise the lines are numbered.
    """

    name = "hf-print"
    title = "Hugging Face Trainer output"
    certain = 0.93

    def __init__(self, mapping: Mapping[str, str]) -> None:
        super().__init__(mapping)
        self._bars = False
        self._last = 0
        self._bar = 0
        self._epoch: float | None = None

    def prepare(self, head: list[str]) -> None:
        """Does a progress bar run along?"""
        self._bars = any(_BAR.search(line) for line in head)

    def columns(self) -> dict[str, str]:
        """Field to the key that it was taken from."""
        step = "the progress bar" if self._bars else "number of the line (the log has no steps)"
        return {"step": step, "loss": "loss", "grad_norm": "grad_norm", "lr": "learning_rate"}

    def detect(self, head: bytes) -> Any:
        """Count the rows among the first lines; the steps begin anew afterwards."""
        guess = super().detect(head)
        self._last = self._bar = 0
        self._epoch = None
        return guess

    def parse(self, text: str) -> Fields | None:
        """The row on a line."""
        start = text.find("{'")
        bar = _BAR.search(text) if "|" in text else None
        if bar is not None:
            self._bar = int(bar.group(1))
        if start < 0 or "'loss'" not in text:
            return None
        match = _DICT.match(text, start)
        logged = _parse(match.group(0) if match else "")
        try:
            loss = number(logged.get("loss"))
            norm = number(logged.get("grad_norm"))
            rate = number(logged.get("learning_rate"))
            epoch = number(logged.get("epoch"))
        except ValueError as error:
            raise DamagedLineError(str(error)) from error
        return Fields(self._step(epoch), loss, norm, None, rate)

    def _step(self, epoch: float | None) -> int:
        if self._bars:
            step = self._bar if self._bar != self._last else self._last + 1
        else:
            step = self._last + 1
            before = self._epoch
            if before is not None and epoch is not None and 0.0 <= epoch < before:
                # A resume: the line that was printed at this epoch before is printed again.
                step = max(1, round(self._last * epoch / before))
            self._epoch = epoch
        self._last = step
        return step


def _parse(text: str) -> dict[str, Any]:
    spelled = _NONFINITE.sub(lambda m: m.group(1) + _NAMES[m.group(2)], text.replace("'", '"'))
    try:
        logged = json.loads(spelled.replace("-NaN", "NaN"))
    except ValueError as error:
        raise DamagedLineError("a dictionary that cannot be read to its end") from error
    if not isinstance(logged, dict):
        raise DamagedLineError("no dictionary")
    return logged

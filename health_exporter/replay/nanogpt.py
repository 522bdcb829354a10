"""Loops descended from nanoGPT: `iter 10: loss 2.3456, time 123.45ms, mfu 12.34%`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from health_exporter.replay.number import NUMBER
from health_exporter.replay.text import DamagedLineError, Fields, TextReader

_ROW = re.compile(
    # nanoGPT, litgpt
    rf"\biter(?:ation)?\s+(\d+)(?:\s+step\s+\d+)?\s*:\s*loss:?\s*({NUMBER})(?![\w.])"
    rf"|\biter\s+(\d+)\s+step\s+\d+\s*\|\s*loss train:\s*({NUMBER})(?![\w.])"
    # build-nanogpt and its children
    rf"|\bstep\s*:?\s*(\d+)(?:\s*/\s*\d+)?\s*[|,:]\s*(?:train )?loss\s*[:=]?\s*({NUMBER})(?![\w.])"
    # modded-nanogpt
    rf"|\bstep:(\d+)/\d+\s+(?:train_)?loss:\s*({NUMBER})(?![\w.])",
    re.IGNORECASE,
)
# A hallmark of the loops; a row must go on with one of them, or be one of nanoGPT's own.
_TIME = re.compile(rf"\b(?:iter[ _])?(?:time|dt)\s*:?\s*({NUMBER})\s*(ms|s)\b", re.IGNORECASE)
_TRAIN_TIME = re.compile(r"\btrain_time:\s*(\d+(?:\.\d+)?)\s*(ms|s)\b")
_NORM = re.compile(rf"\b(?:grad[_ ]?)?norm\s*:?\s*({NUMBER})(?![\w.])", re.IGNORECASE)
_RATE = re.compile(rf"\b(?:lr|learning[_ ]rate)\s*:?\s*({NUMBER})(?![\w.])", re.IGNORECASE)
_PLAIN = re.compile(rf"(\d+) train ({NUMBER})\s*$", re.IGNORECASE)
_EVALUATION = re.compile(
    rf"\bstep\s+(\d+):\s*train loss\s+({NUMBER})\b.*?,\s*val loss\b", re.IGNORECASE
)
_BEGUN = re.compile(r"\s*(?:iter\s+\d+(?::|$)|step\s+\d+\s*\|)")


class NanoGptReader(TextReader):
    """nanoGPT, build-nanogpt, modded-nanogpt and their children."""

    name = "nanogpt"
    title = "nanoGPT-style text"

    def __init__(self, mapping: Mapping[str, str]) -> None:
        super().__init__(mapping)
        self._evaluations = False  # the log has nothing but evaluations of the training loss
        self._clock: tuple[int, float] | None = None  # of modded-nanogpt, which runs on

    def prepare(self, head: list[str]) -> None:
        """Are there training steps, or only evaluations?"""
        self._evaluations = any(_EVALUATION.search(line) for line in head) and not any(
            _ROW.search(line) and not _EVALUATION.search(line) for line in head
        )

    def columns(self) -> dict[str, str]:
        """Field to the words that it stands behind."""
        if self._evaluations:
            return {"step": "step", "loss": "train loss (of the evaluations)"}
        return {
            "step": "iter or step",
            "loss": "loss",
            "grad_norm": "norm",
            "step_time_s": "time or dt",
            "lr": "lr",
        }

    def parse(self, text: str) -> Fields | None:
        """The row on a line; evaluations are none as long as there are steps."""
        if "val loss" in text or "val_loss" in text:
            match = _EVALUATION.search(text) if self._evaluations else None
            return Fields(int(match.group(1)), float(match.group(2))) if match else None
        match = _ROW.search(text)
        if match is None:
            match = _PLAIN.match(text)
            if match is not None:
                return Fields(int(match.group(1)), float(match.group(2)))
            if _BEGUN.match(text):
                raise DamagedLineError("a row without a loss that can be read")
            return None
        groups = match.groups()
        index = next(i for i in (0, 2, 4, 6) if groups[i] is not None)
        step = int(groups[index])
        norm = _NORM.search(text, match.end())
        rate = _RATE.search(text, match.end())
        return Fields(
            step,
            float(groups[index + 1]),
            None if norm is None else float(norm.group(1)),
            self._step_time(text, step, match.end()),
            None if rate is None else float(rate.group(1)),
        )

    def _step_time(self, text: str, step: int, start: int) -> float | None:
        clock = _TRAIN_TIME.search(text, start)
        if clock is not None:
            now = float(clock.group(1)) * (1e-3 if clock.group(2) == "ms" else 1.0)
            before, self._clock = self._clock, (step, now)
            if before is None or step <= before[0] or now <= before[1]:
                return None
            return (now - before[1]) / (step - before[0])
        match = _TIME.search(text, start)
        if match is None:
            return None
        seconds = float(match.group(1)) * (1e-3 if match.group(2).lower() == "ms" else 1.0)
        return seconds if seconds > 0.0 else None

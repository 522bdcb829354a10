"""Any loop that prints `key=value` or `key: value` with a step and a loss."""

from __future__ import annotations

import re
from collections.abc import Mapping

from health_exporter.replay import column
from health_exporter.replay.error import LogError
from health_exporter.replay.number import NUMBER
from health_exporter.replay.reader import NO, Guess
from health_exporter.replay.tally import Tally
from health_exporter.replay.text import DamagedLineError, Fields, TextReader

_PAIR = re.compile(
    rf"(?<![\w.])([A-Za-z][\w./-]*(?: (?:loss|norm|rate|time|step|function|value)\b)?)"
    rf"(?:[\"']?\s*[:=]\s*[\"']?|\s+)\[?(?:\s*)({NUMBER})(?![\w.]*[A-Za-z_]\w*\s*[:=])",
    re.IGNORECASE,
)
# "Epoch: [1][ 50/7330]", "| epoch 1 | 200/ 2323 batches", "[Epoch 0 Batch 200/5000]",
# "Epoch 1, iter 20/742", "epoch 1 step 20"
_IN_EPOCH = re.compile(
    r"\bepoch\s*[:=]?\s*\[?\s*(\d+)(?:\s*/\s*\d+)?\s*\]?[\s,|:;\-]*\[?\s*"
    r"(?:(?:global[ _])?(?:batch|step|iter(?:ation)?)\b\s*[:=#]?\s*\[?)?\s*(\d+)(?:\s*/\s*(\d+))?",
    re.IGNORECASE,
)
_LOOKED_FOR_COLUMNS = 2000
_UNIT = re.compile(r"\s*(ms|msec|s|sec)\b")
_IGNORED = re.compile(r"\b(?:val|valid|validation|eval|evaluation|test|dev)\w*\b", re.IGNORECASE)
_OFFSET_STEPS = 1


class KeyValueReader(TextReader):
    """Lines with a step and a loss, whatever else is on them; what is what is guessed."""

    name = "text"
    title = "text with key: value pairs"
    certain = 0.6  # a reader that knows the format is better

    def __init__(self, mapping: Mapping[str, str]) -> None:
        super().__init__(mapping)
        self._chosen: dict[str, str] = {}
        self._patterns: dict[str, re.Pattern[str]] = {}
        self._factor = 1.0
        self._in_epoch = False
        self._epoch: tuple[int, int] | None = None  # of the last row: epoch and step in it
        self._offset = 0  # steps of the epochs before, where a line does not say how many
        self._samples: dict[str, column.Sample] = {}

    def prepare(self, head: list[str]) -> None:
        """Choose the columns by what the first lines say."""
        candidates = [line[:4096] for line in head if "oss" in line.lower() or self.mapping]
        candidates = [line for line in candidates if _PAIR.search(line)][:_LOOKED_FOR_COLUMNS]
        self._samples = column.collect(
            {key.strip(): value for key, value in _PAIR.findall(line)} for line in candidates
        )
        try:
            self._chosen = column.choose(self._samples, self.mapping)
        except LogError:
            self._chosen = {}
        if not self._chosen:
            return
        training = re.compile(_key(self._chosen["loss"]), re.IGNORECASE)
        rows = [line for line in candidates if training.search(line)]
        within = sum(_IN_EPOCH.search(line) is not None for line in rows)
        step = self._chosen.get("step", "")
        # A counter that begins anew in each epoch is told by the epoch that stands before it.
        self._in_epoch = (
            "step" not in self.mapping
            and 2 * within > len(rows)
            and (not step or ("global" not in step.lower() and "update" not in step.lower()))
        )
        self._patterns = {
            name: re.compile(_key(key) + rf"({NUMBER})(?![\w.]*[A-Za-z_]\w*\s*[:=])", re.IGNORECASE)
            for name, key in self._chosen.items()
            if name not in ("time", "restart")
        }
        self._factor = column.factor_of(self._chosen.get("step_time_s", ""))

    def columns(self) -> dict[str, str]:
        """Field to the words that it stands behind."""
        chosen = {name: key for name, key in self._chosen.items() if name in self._patterns}
        if self._in_epoch:
            chosen["step"] = "epoch and batch"
        return chosen

    def describe(self, tally: Tally) -> None:
        """Say what was taken for what; the user's own names must be there.

        Raises:
            LogError: A column that the user named does not exist, or there is no step.
        """
        if self.mapping:
            column.choose(self._samples, self.mapping)
        if not self._chosen:
            raise column.missing_loss(self._samples)
        super().describe(tally)
        if "step" not in self._chosen and not self._in_epoch:
            tally.note("no key is a step (name it with --map step=NAME): rows are numbered")

    def detect(self, head: bytes) -> Guess:
        """Count the rows among the first lines; the steps begin anew afterwards."""
        guess = super().detect(head)
        self._epoch, self._offset = None, 0
        if guess.confidence and "step" not in self._chosen and not self._in_epoch:
            return NO  # prose with the word loss in it
        return guess

    def parse(self, text: str) -> Fields | None:
        """The row on a line."""
        patterns = self._patterns
        if not patterns:
            return None
        loss = patterns["loss"].search(text)
        if loss is None:
            return None
        if _IGNORED.search(text, 0, loss.start()) and not self.mapping:
            return None
        step = self._step(text)
        if step is None:
            return None
        others = []
        for name in ("grad_norm", "step_time_s", "lr"):
            pattern = patterns.get(name)
            match = None if pattern is None else pattern.search(text)
            value = None if match is None else float(match.group(1).replace(",", ""))
            if match is not None and value is not None and name == "step_time_s":
                unit = _UNIT.match(text, match.end())
                factor = self._factor
                if unit is not None:
                    factor = 1e-3 if unit.group(1).startswith("ms") else 1.0
                value *= factor
            others.append(value)
        norm, seconds, rate = others
        return Fields(step, float(loss.group(1).replace(",", "")), norm, seconds, rate)

    def _step(self, text: str) -> int | None:
        if self._in_epoch:
            match = _IN_EPOCH.search(text)
            if match is None:
                return None
            epoch, step = int(match.group(1)), int(match.group(2))
            if match.group(3) is not None:
                return epoch * int(match.group(3)) + step
            return self._through_epochs(epoch, step)
        pattern = self._patterns.get("step")
        if pattern is None:
            self._offset += 1
            return self._offset
        match = pattern.search(text)
        if match is None:
            return None
        number = float(match.group(1).replace(",", ""))
        if not number.is_integer():
            raise DamagedLineError(f"no step number: {match.group(1)}")
        return int(number)

    def _through_epochs(self, epoch: int, step: int) -> int:
        """The step since the start, where no line says how many steps an epoch has."""
        before = self._epoch
        if before is not None and epoch > before[0] and step <= before[1]:
            self._offset += before[1] + _OFFSET_STEPS
        self._epoch = (epoch, step)
        return self._offset + step


def _key(name: str) -> str:
    """A pattern for a key and what separates it from its value."""
    return rf"(?<![\w./]){re.escape(name)}(?:[\"']?\s*[:=]\s*[\"']?|\s+)\[?\s*"

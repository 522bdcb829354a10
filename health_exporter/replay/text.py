"""What all text logs have in common: rank prefixes, dates, resume lines, damaged lines."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import BinaryIO, ClassVar, NamedTuple

from health_exporter.replay.number import moment
from health_exporter.replay.reader import NO, Guess
from health_exporter.replay.row import Row
from health_exporter.replay.source import lines, plain
from health_exporter.replay.tally import Tally

# A line is looked at up to here: some trainers print their whole configuration on one.
_LOOKED_AT = 4096

# Rows after which a log without dates, or without rank prefixes, is not searched for them any more.
_SETTLED = 64

# Rows of other ranks after which the followed one is taken for gone: its whole node would have
# printed far fewer in between.
_GONE = 256

# torchrun's `[rank0]:` and `[default0]:`, srun's ` 0: `.
_RANK = re.compile(
    r"\s*(?:\[(?:rank|default|Rank )(\d{1,6})\]|\[?(\d{1,6})\]?:(?=\s|\[|[A-Za-z]))", re.IGNORECASE
)

_RESUME = re.compile(
    r"\bresum(?:ing|ed)\b.{0,60}\b(?:train|from|checkpoint|ckpt|step|iter|epoch|run)"
    r"|\b(?:re)?load(?:ed|ing)\b.{0,80}\b(?:checkpoint|ckpt|(?:optimizer|train(?:ing|er)?) states?)"
    r"|\brestor(?:ed|ing)\b.{0,80}\b(?:checkpoint|ckpt|states?)\b"
    r"|\bcontinuing training from\b",
    re.IGNORECASE,
)
_NO_RESUME = re.compile(
    r"\b(?:not|no|never|without|unable|fail(?:ed|ure)?|could|cannot|skip\w*|disabled?|false"
    r"|shards|pretrained|saving|tokenizer)\b",
    re.IGNORECASE,
)
_AFRESH = re.compile(
    r"\bwill (?:not load any checkpoints|start from random)|\btraining from scratch", re.IGNORECASE
)


class Fields(NamedTuple):
    """What a line says, as far as its format says it."""

    step: int
    loss: float | None
    grad_norm: float | None = None
    step_time_s: float | None = None
    lr: float | None = None
    skipped: int = 0


class DamagedLineError(ValueError):
    """A line that should be a row and cannot be read; the message is the reason."""


class TextReader(ABC):
    """Reads rows from lines of text: a format is its `parse`."""

    name: ClassVar[str]
    title: ClassVar[str]
    certain: ClassVar[float] = 0.95
    """Confidence once three rows were found."""

    def __init__(self, mapping: Mapping[str, str]) -> None:
        self.mapping = mapping

    @abstractmethod
    def parse(self, text: str) -> Fields | None:
        """The row on a line; None if there is none.

        Raises:
            ValueError: The line begins like a row, and cannot be read.
        """

    def prepare(self, head: list[str]) -> None:  # noqa: B027  # most formats have one form
        """Look at the first lines, for formats that have several forms."""

    def describe(self, tally: Tally) -> None:
        """Say what was taken for what."""
        tally.columns.update(self.columns())

    def columns(self) -> dict[str, str]:
        """Field to the words that it stands behind."""
        return {}

    def detect(self, head: bytes) -> Guess:
        """Count the rows among the first lines."""
        found = [
            line for raw in head.split(b"\n") for line in plain(raw.decode("utf-8", "replace"))
        ]
        self.prepare(found)
        n_rows = 0
        example = ""
        for text in found:
            try:
                fields = self.parse(text[:_LOOKED_AT].rstrip())
            except ValueError:
                continue
            if fields is not None and fields.loss is not None:
                n_rows += 1
                example = example or text.strip()
        if not n_rows:
            return NO
        confidence = self.certain if n_rows >= 3 else self.certain - 0.15
        return Guess(confidence=confidence, why=f"{n_rows:,} lines such as {example[:100]!r}")

    def rows(self, stream: BinaryIO, tally: Tally) -> Iterator[Row]:
        """The rows, each with the resume lines before it."""
        self.describe(tally)
        ranks = _Ranks(tally)
        dates = _Dates()
        resumed = ""
        parse = self.parse
        for number, raw in lines(stream, tally):
            for text in plain(raw) if "\x1b" in raw or "\r" in raw else (raw,):
                text = text[:_LOOKED_AT]
                try:
                    fields = parse(text)
                except ValueError as error:
                    tally.damage(number, str(error))
                    continue
                if fields is None:
                    found = resume_in(text)
                    if found is not None:
                        resumed = found
                        ranks.forget()
                    continue
                if not ranks.follow(text, fields.step):
                    continue
                step, loss, grad_norm, step_time_s, lr, skipped = fields
                tally.n_skipped_steps += skipped
                tally.n_rows += 1
                time = dates.of(text)
                yield Row(step, loss, grad_norm, step_time_s, lr, time, resumed, number)
                resumed = ""


def resume_in(text: str) -> str | None:
    """What a line says of a resume: its text; "" if it takes an earlier one back; None: nothing."""
    if "oad" not in text and "esum" not in text and "estor" not in text and "from" not in text:
        return None
    if _AFRESH.search(text):
        return ""
    if _RESUME.search(text) is None or _NO_RESUME.search(text):
        return None
    return text.strip()[:200]


class _Ranks:
    """Follows one of the ranks that print into the same log."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._followed: str | None = None
        self._others = 0
        self._seen = 0
        self._prefixed = False

    def forget(self) -> None:
        """After a resume another rank may be the one that prints."""
        self._followed = None

    def follow(self, text: str, step: int) -> bool:
        """Whether the row on this line counts."""
        if not self._prefixed:
            if self._seen > _SETTLED:
                return True
            self._seen += 1
        match = _RANK.match(text)
        if match is None:
            return True
        rank = match.group(1) or match.group(2)
        if not self._prefixed and match.group(1) is None and int(rank) == step:
            self._followed = self._followed or rank
            return True  # a line that begins with its step, as long as nothing says otherwise
        self._prefixed = True
        if self._followed is None or rank == self._followed or self._others >= _GONE:
            self._followed = rank
            self._others = 0
            return True
        self._others += 1
        self._tally.n_other_ranks += 1
        return False


class _Dates:
    """Dates at the start of the lines, if the log has them."""

    def __init__(self) -> None:
        self._missed = 0

    def of(self, text: str) -> float | None:
        if self._missed > _SETTLED:
            return None
        time = moment(text)
        self._missed = self._missed + 1 if time is None else 0
        return time

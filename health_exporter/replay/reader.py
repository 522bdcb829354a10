"""What every reader of a format offers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, ClassVar, Protocol

from health_exporter.replay.row import Row
from health_exporter.replay.tally import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """How sure a reader is that a file is of its format.

    Args:
        confidence: 0.0 (it is not) to 1.0.
        why: What was seen, for a person.
    """

    confidence: float
    why: str


NO = Guess(confidence=0.0, why="")


class Reader(Protocol):
    """Reads one format; a new one for each file.

    Attributes:
        name: The format's name on the command line.
        title: The format's name for people.
    """

    name: ClassVar[str]
    title: ClassVar[str]

    def __init__(self, mapping: Mapping[str, str]) -> None:
        """`mapping`: field to column, as the user named them; formats without columns ignore it."""

    def detect(self, head: bytes) -> Guess:
        """Look at the first bytes of a file."""

    def rows(self, stream: BinaryIO, tally: Tally) -> Iterator[Row]:
        """The rows in the order of the file.

        Raises:
            LogError: The columns that are needed are not there.
        """

"""Logs for tests: bytes through the readers, as the command does it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

from health_exporter.replay.detection import READERS
from health_exporter.replay.reader import Reader
from health_exporter.replay.row import Row
from health_exporter.replay.tally import Tally


def read(
    text: str | bytes, *, wanted: str | None = None, mapping: Mapping[str, str] | None = None
) -> tuple[list[Row], Tally, str]:
    """The rows of a log, what was counted, and the name of the format that was told or wanted."""
    data = text.encode() if isinstance(text, str) else text
    readers: list[Reader] = [
        reader(mapping or {}) for reader in READERS if wanted in (None, reader.name)
    ]
    best = max(readers, key=lambda reader: reader.detect(data).confidence)
    tally = Tally()
    rows = list(best.rows(io.BytesIO(data), tally))
    return rows, tally, best.name


def losses(rows: list[Row]) -> list[tuple[int, float | None]]:
    """Step and loss of each row."""
    return [(row.step, row.loss) for row in rows]


def write(path: Path, text: str | bytes) -> Path:
    """The file, written."""
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path

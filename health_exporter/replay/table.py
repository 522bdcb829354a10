"""Tables with a header: CSV, TSV, exports of Weights & Biases, Lightning's metrics.csv."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, ClassVar

from health_exporter.replay import column
from health_exporter.replay.json_lines import SAMPLED
from health_exporter.replay.number import number
from health_exporter.replay.reader import NO, Guess
from health_exporter.replay.record import RowMaker
from health_exporter.replay.row import FIELDS, Row
from health_exporter.replay.source import lines
from health_exporter.replay.tally import Tally

_DELIMITERS = ",\t;"

Record = tuple[int, list[str]]


class TableReader:
    """A header and rows below it; empty cells say nothing."""

    name: ClassVar = "csv"
    title: ClassVar = "table (CSV or TSV)"

    def __init__(self, mapping: Mapping[str, str]) -> None:
        self._mapping = mapping

    def detect(self, head: bytes) -> Guess:
        """Is the first line a header with a loss, and are the next ones as wide?"""
        texts = [raw.decode("utf-8", "replace").strip("\ufeff\r") for raw in head.split(b"\n")]
        texts = [text for text in texts[:SAMPLED] if text.strip() and text[0] != "#"]
        if len(texts) < 2 or texts[0].lstrip()[:1] in ("{", "["):
            return NO
        delimiter = _delimiter(texts[0])
        if delimiter is None or "\0" in texts[0]:
            return NO
        try:
            header = _split(texts[0], delimiter)
            body = [_split(text, delimiter) for text in texts[1:]]
        except csv.Error:
            return NO
        if len(header) < 2 or any(map(_is_number, header)):
            return NO
        fitting = [cells for cells in body if len(cells) == len(header)]
        if 2 * len(fitting) < len(body):
            return NO
        samples = column.collect(dict(zip(header, cells, strict=True)) for cells in fitting)
        if "loss" not in self._mapping and not column.choose(samples, {}):
            return NO
        kind = {",": "commas", "\t": "tabs", ";": "semicolons"}[delimiter]
        return Guess(
            confidence=0.9, why=f"a header with {len(header)} columns, separated by {kind}"
        )

    def rows(self, stream: BinaryIO, tally: Tally) -> Iterator[Row]:
        """The rows; a header that comes again is left out.

        Raises:
            LogError: No column is a loss, or one that the user named does not exist.
        """
        records = _records(stream, tally)
        header = next(records, (0, []))[1]
        first = list(itertools.islice(records, SAMPLED))
        samples = {name: column.Sample() for name in header}
        for _, cells in first:
            for name, cell in zip(header, cells, strict=False):
                if cell != "":
                    samples[name].add(cell)
        chosen = column.choose(samples, self._mapping)
        if not chosen:
            raise column.missing_loss(samples)
        runs = column.runs_of(samples)
        if len(runs) > 1:
            tally.note(
                f"the table holds {len(runs)} runs; this is the one of {chosen['loss']!r} "
                "(another one: --map loss=COLUMN)"
            )
        return _rows(itertools.chain(first, records), header, chosen, tally)


def _rows(
    records: Iterator[Record], header: list[str], chosen: Mapping[str, str], tally: Tally
) -> Iterator[Row]:
    width = len(header)
    make = RowMaker(chosen, tally).make
    # A field without a column is taken from behind the last cell, where None is put.
    places = [header.index(chosen[name]) if name in chosen else width for name in FIELDS]
    step, loss, norm, seconds, rate, time, restart = places
    for line, cells in records:
        if len(cells) != width:
            if cells:
                tally.damage(line, f"{len(cells)} cells where the header has {width}")
            continue
        if cells == header:
            continue
        row: list[str | None] = [*cells, None]
        made = make(
            line,
            row[step],
            row[loss],
            row[norm],
            row[seconds],
            row[rate],
            row[time],
            row[restart],
            "",
        )
        if made is not None:
            yield made


def _records(stream: BinaryIO, tally: Tally) -> Iterator[Record]:
    """Header and rows as cells."""
    numbered = ((n, text) for n, text in lines(stream, tally) if text and text[0] != "#")
    first = next(numbered, None)
    if first is None:
        return
    delimiter = _delimiter(first[1]) or ","
    yield first[0], _split(first[1], delimiter)
    for line, text in numbered:
        if '"' in text:
            try:
                yield line, _split(text, delimiter)
            except csv.Error as error:
                tally.damage(line, str(error))
        else:
            yield line, text.split(delimiter)


def _delimiter(header: str) -> str | None:
    counts = {delimiter: header.count(delimiter) for delimiter in _DELIMITERS}
    best = max(counts, key=lambda delimiter: counts[delimiter])
    return best if counts[best] else None


def _split(text: str, delimiter: str | None) -> list[str]:
    """The cells of a line. No trainer's log has line ends within cells."""
    if delimiter is None:
        return [text]
    if '"' not in text:
        return [cell.strip() for cell in text.split(delimiter)]
    cells: list[Any] = next(csv.reader([text.replace("\0", "\ufffd")], delimiter=delimiter), [])
    return [str(cell).strip() for cell in cells]


def _is_number(text: str) -> bool:
    try:
        return number(text) is not None
    except ValueError:
        return False

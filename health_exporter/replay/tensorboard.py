"""TensorBoard event files, read without TensorFlow."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Mapping
from typing import BinaryIO, ClassVar, NamedTuple

from health_exporter.replay import column, crc32c, event_proto
from health_exporter.replay.reader import NO, Guess
from health_exporter.replay.row import Row
from health_exporter.replay.source import CUT_SHORT
from health_exporter.replay.tally import Tally

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")

# A graph or an image; scalars are some tens of bytes.
_LONGEST_RECORD = 1 << 30

# Scalars whose tags are looked at before the columns are chosen.
_SAMPLED = 4000

# Searched at a time for the next record that can be read, after one that cannot.
_PIECE = 1 << 16


class Scalar(NamedTuple):
    """One value of one tag."""

    record: int
    step: int
    time: float
    tag: str
    value: float
    begun: bool
    """A writer has begun between the scalar before and this one."""


class TensorBoardReader:
    """Scalars of an event file, put together by their steps."""

    name: ClassVar = "tensorboard"
    title: ClassVar = "TensorBoard events"

    def __init__(self, mapping: Mapping[str, str]) -> None:
        self._mapping = mapping

    def detect(self, head: bytes) -> Guess:
        """Is the first record's length followed by its checksum?"""
        if len(head) < _HEADER.size or _length(head[: _HEADER.size]) is None:
            return NO
        return Guess(confidence=1.0, why="it begins with a record whose checksum is right")

    def rows(self, stream: BinaryIO, tally: Tally) -> Iterator[Row]:
        """One row a step and writer.

        Raises:
            LogError: No tag is a loss, or one that the user named does not exist.
        """
        tally.unit = "record"
        scalars = _scalars(stream, tally)
        first = list(itertools.islice(scalars, _SAMPLED))
        samples: dict[str, column.Sample] = {}
        for scalar in first:
            samples.setdefault(scalar.tag, column.Sample()).add(scalar.value)
        chosen = column.choose(samples, self._mapping)
        if not chosen:
            raise column.missing_loss(samples)
        # The step and the time stand beside every value; tags of these names are curves of them.
        chosen = {n: tag for n, tag in chosen.items() if n not in ("step", "time", "restart")}
        tally.columns.update({"step": "the events' step", **chosen, "time": "the events' time"})
        return _rows(itertools.chain(first, scalars), chosen, tally)


def _rows(scalars: Iterator[Scalar], chosen: Mapping[str, str], tally: Tally) -> Iterator[Row]:
    fields = {tag: name for name, tag in chosen.items()}
    factor = column.factor_of(chosen.get("step_time_s", ""))
    values: dict[str, float] = {}
    last: Scalar | None = None
    begun = False
    for scalar in scalars:
        name = fields.get(scalar.tag)
        begun = begun or scalar.begun
        if name is None:
            continue
        if last is not None and (scalar.step != last.step or name in values or begun):
            yield _row(last, values, factor, tally)
            values = {}
        if not values:
            last = scalar._replace(begun=begun)
            begun = False
        values[name] = scalar.value
    if last is not None and values:
        yield _row(last, values, factor, tally)


def _row(first: Scalar, values: Mapping[str, float], factor: float, tally: Tally) -> Row:
    tally.n_rows += 1
    seconds = values.get("step_time_s")
    return Row(
        first.step,
        values.get("loss"),
        values.get("grad_norm"),
        None if seconds is None else seconds * factor,
        values.get("lr"),
        first.time,
        "another writer began" if first.begun else "",
        first.record,
    )


def _scalars(stream: BinaryIO, tally: Tally) -> Iterator[Scalar]:
    begun = False
    for number, data in records(stream, tally):
        tally.n_lines = number
        try:
            event = event_proto.parse(data)
        except ValueError as error:
            tally.damage(number, str(error))
            continue
        # A file may hold the logs of several writers, one after the other.
        begun = begun or event.started
        for tag, value in event.scalars:
            if event.step < 0:
                continue
            yield Scalar(number, event.step, event.time, tag, value, begun)
            begun = False


def records(stream: BinaryIO, tally: Tally) -> Iterator[tuple[int, bytes]]:
    """The records of a TFRecord file with their numbers from 1.

    Each is 8 bytes of length, their checksum, the data, its checksum
    (tensorflow/core/lib/io/record_writer.h). A record whose data is damaged is counted and left
    out; after a damaged length the next right one is searched for.
    """
    number = 0
    buffer = _Buffer(stream)
    try:
        while header := buffer.take(_HEADER.size):
            number += 1
            length = _length(header) if len(header) == _HEADER.size else None
            if length is None:
                if len(header) < _HEADER.size:
                    tally.damage(number, "the file ends within a record")
                    return
                tally.damage(number, "the length of a record is damaged")
                if not _search(buffer, header):
                    return
                continue
            data = buffer.take(length)
            footer = buffer.take(_FOOTER.size)
            if len(data) < length or len(footer) < _FOOTER.size:
                tally.damage(number, "the file ends within a record")
                return
            if crc32c.masked(data) != _FOOTER.unpack(footer)[0]:
                tally.damage(number, "the checksum of a record is wrong")
                continue
            yield number, data
    except CUT_SHORT as error:
        tally.damage(number + 1, f"the compressed file is damaged from here on ({error})")


class _Buffer:
    """A stream to which bytes can be given back."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._given_back = b""

    def take(self, size: int) -> bytes:
        """The next `size` bytes; fewer at the end."""
        if not self._given_back:
            return self._stream.read(size)
        taken, self._given_back = self._given_back[:size], self._given_back[size:]
        return taken + (self._stream.read(size - len(taken)) if len(taken) < size else b"")

    def give_back(self, data: bytes) -> None:
        """Read these next."""
        self._given_back = data + self._given_back


def _search(buffer: _Buffer, header: bytes) -> bool:
    """Go to the next twelve bytes that are a length and its checksum; False if there are none."""
    window = header[1:]
    while piece := buffer.take(_PIECE):
        window += piece
        for start in range(len(window) - _HEADER.size + 1):
            # The length's upper half is zero in any real record: the checksum need not be tried.
            if window[start + 4 : start + 8] != b"\0\0\0\0":
                continue
            if _length(window[start : start + _HEADER.size]) is not None:
                buffer.give_back(window[start:])
                return True
        window = window[-(_HEADER.size - 1) :]
    return False


def _length(header: bytes) -> int | None:
    length, checksum = _HEADER.unpack(header)
    if length > _LONGEST_RECORD or crc32c.masked(header[:8]) != checksum:
        return None
    return int(length)

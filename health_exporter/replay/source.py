"""A file as bytes and as lines: gzip or not, damaged or not, never whole in memory.

What Windows' PowerShell writes with `>` is UTF-16, and is read as such.
"""

from __future__ import annotations

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from health_exporter.replay.error import LogError
from health_exporter.replay.tally import Tally

_GZIP = b"\x1f\x8b"

# Longer ones are no line of a training log; they are cut into pieces, so that memory is bounded.
_LONGEST_LINE = 1 << 20

# A progress bar writes over itself: its states are separated by carriage returns alone.
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07")

CUT_SHORT = (EOFError, zlib.error, gzip.BadGzipFile)
"""What reading a compressed file that is damaged or cut short raises."""

Line = tuple[int, str]


class Source:
    """An open log file.

    Args:
        path: The file.

    Raises:
        LogError: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            raw = path.open("rb")
            if path.is_dir():
                raise IsADirectoryError(21, "Is a directory")
            magic = raw.read(2)
            raw.seek(0)
        except OSError as error:
            raise LogError(f"{path} cannot be read: {error.strerror or error}") from error
        self._raw = raw
        self.compressed = magic == _GZIP
        stream: Any = gzip.GzipFile(fileobj=raw) if self.compressed else raw
        if magic in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            stream = codecs.EncodedFile(raw, "utf-8", "utf-16", errors="replace")
        self.stream = cast("BinaryIO", stream)

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stream.close()
        self._raw.close()

    def position(self) -> int:
        """How many bytes of the file on disk have been read."""
        return self._raw.tell()


def lines(stream: BinaryIO, tally: Tally) -> Iterator[Line]:
    """The lines with their numbers from 1, without their ends; bytes that are no UTF-8 become �.

    Args:
        stream: Bytes.
        tally: Its `n_lines` is kept up to date; a compressed file that is cut short is a damage.
    """
    number = 0
    try:
        while raw := stream.readline(_LONGEST_LINE):
            number += 1
            text = raw.decode("utf-8", "replace")
            if number == 1:
                text = text.removeprefix("\ufeff")
            yield number, text.rstrip("\r\n")
    except CUT_SHORT as error:
        tally.damage(number + 1, f"the compressed file is damaged from here on ({error})")
    finally:
        tally.n_lines = number


def plain(text: str) -> Iterator[str]:
    """A line as a terminal would have shown it: no colour codes, each state of a progress bar."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "\r" in text:
        yield from filter(None, text.split("\r"))
    else:
        yield text


def head(path: Path, size: int) -> bytes:
    """The first `size` bytes, uncompressed; fewer where the file is shorter, or damaged.

    Raises:
        LogError: It cannot be opened.
    """
    with Source(path) as source:
        found = io.BytesIO()
        try:
            while found.tell() < size and (piece := source.stream.read(1 << 16)):
                found.write(piece)
        except CUT_SHORT:
            pass
        return found.getvalue()[:size]

"""One JSON document: Hugging Face `trainer_state.json`, or an array of objects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, ClassVar

from health_exporter.replay.json_lines import Object, rows_of
from health_exporter.replay.reader import NO, Guess
from health_exporter.replay.row import Row
from health_exporter.replay.source import CUT_SHORT
from health_exporter.replay.tally import Tally

_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_ARRAY = re.compile(r"\s*\[\s*(?=\{|\])")
_PIECE = 1 << 16

# An object of a log is a few hundred bytes; what is not complete by then is damaged.
_LONGEST_OBJECT = 1 << 20


class TrainerStateReader:
    """`log_history` of a `trainer_state.json`, or an array of objects, read piece by piece."""

    name: ClassVar = "trainer-state"
    title: ClassVar = "Hugging Face trainer_state.json"

    def __init__(self, mapping: Mapping[str, str]) -> None:
        self._mapping = mapping

    def detect(self, head: bytes) -> Guess:
        """Is it one document with a history in it?"""
        text = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
        if text[:1] == "{" and _HISTORY.search(text):
            return Guess(confidence=1.0, why='one JSON object with a list "log_history"')
        if _ARRAY.match(text) and '"' in text[:_PIECE]:
            return Guess(confidence=0.9, why="one JSON array of objects")
        return NO

    def rows(self, stream: BinaryIO, tally: Tally) -> Iterator[Row]:
        """The rows; what an object lacks is None.

        Raises:
            LogError: No key is a loss, or one that the user named does not exist.
        """
        tally.unit = "object"
        return rows_of(_objects(stream, tally), self._mapping, tally)


def _objects(stream: BinaryIO, tally: Tally) -> Iterator[Object]:
    """The objects of the list, decoded one by one."""
    text = _Window(stream, tally)
    if not text.seek_list():
        return
    number = 0
    decode = json.JSONDecoder().raw_decode
    while text.skip_to_object():
        number += 1
        tally.n_lines = number
        found: Any = None
        while True:
            try:
                found, end = decode(text.buffer, text.at)
            except (ValueError, RecursionError):
                if len(text.buffer) - text.at < _LONGEST_OBJECT and text.grow():
                    continue
                tally.damage(number, "no JSON object that can be read")
                text.at += 1
                break
            text.at = end
            break
        if isinstance(found, dict):
            yield number, found, ""


class _Window:
    """The part of a document that is being decoded."""

    def __init__(self, stream: BinaryIO, tally: Tally) -> None:
        self._stream = stream
        self._tally = tally
        self.buffer = ""
        self.at = 0

    def grow(self) -> bool:
        """Read on; False at the end."""
        try:
            piece = self._stream.read(_PIECE)
        except CUT_SHORT as error:
            self._tally.damage(self._tally.n_lines + 1, f"the compressed file is damaged ({error})")
            return False
        if not piece:
            return False
        # A character that lies across two pieces is in a string, and no number is lost with it.
        self.buffer = self.buffer[self.at :] + piece.decode("utf-8", "replace")
        self.at = 0
        return True

    def seek_list(self) -> bool:
        """Go to the start of the list; False if there is none."""
        while self.grow():
            text = self.buffer.lstrip("\ufeff \t\r\n")
            if text[:1] == "[":
                self.at = self.buffer.index("[") + 1
                return True
            match = _HISTORY.search(self.buffer)
            if match is not None:
                self.at = match.end()
                return True
            # Keep what may be the start of the key.
            self.at = max(0, len(self.buffer) - 64)
        return False

    def skip_to_object(self) -> bool:
        """Go to the next object of the list; False at its end."""
        while True:
            while self.at < len(self.buffer):
                if self.buffer[self.at] == "{":
                    return True
                if self.buffer[self.at] == "]":
                    return False
                self.at += 1
            if not self.grow():
                return False

"""Which format a file is in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from health_exporter.replay.error import LogError
from health_exporter.replay.json_lines import JsonLinesReader
from health_exporter.replay.key_value import KeyValueReader
from health_exporter.replay.lightning import LightningReader
from health_exporter.replay.llm_c import LlmCReader
from health_exporter.replay.megatron import MegatronReader
from health_exporter.replay.nanogpt import NanoGptReader
from health_exporter.replay.printed import PrintedReader
from health_exporter.replay.reader import Guess, Reader
from health_exporter.replay.source import head
from health_exporter.replay.table import TableReader
from health_exporter.replay.tensorboard import TensorBoardReader
from health_exporter.replay.torchtitan import TorchTitanReader
from health_exporter.replay.trainer_state import TrainerStateReader

READERS: tuple[type[Reader], ...] = (
    TensorBoardReader,
    TrainerStateReader,
    JsonLinesReader,
    TableReader,
    MegatronReader,
    TorchTitanReader,
    LlmCReader,
    NanoGptReader,
    LightningReader,
    PrintedReader,
    KeyValueReader,
)
"""All formats. To add one, write its reader and name it here."""

FORMATS = tuple(reader.name for reader in READERS)

# Columns are named only where the format has columns: the others know their own.
_WITH_COLUMNS = (TensorBoardReader, TrainerStateReader, JsonLinesReader, TableReader,
                 KeyValueReader)  # fmt: skip

# Some trainers print their configuration, or even their source, before the first step; where the
# first piece holds no row, more is looked at.
_LOOKED_AT = (1 << 18, 1 << 22, 1 << 25)


def detect(
    path: Path, mapping: Mapping[str, str], wanted: str | None = None
) -> tuple[Reader, Guess]:
    """The reader for a file, and why.

    Args:
        path: The file.
        mapping: Field to column, as the user named them.
        wanted: Name of the format, where the user knows it.

    Raises:
        LogError: The file cannot be read, is empty, or is no training log.
    """
    for size in _LOOKED_AT:
        first = head(path, size)
        if not first.strip():
            raise LogError(f"{path} is empty")
        found = [(reader, reader.detect(first)) for reader in _candidates(mapping, wanted)]
        best = max(found, key=lambda pair: pair[1].confidence)
        if best[1].confidence > 0.0:
            return best
        if len(first) < size:
            break
    if wanted is not None:
        raise LogError(f"{path} holds no rows of format {wanted}")
    raise LogError(f"{path} is no training log: {_seen(first)}")


def _candidates(mapping: Mapping[str, str], wanted: str | None) -> list[Reader]:
    readers = READERS if not mapping else _WITH_COLUMNS
    return [reader(mapping) for reader in readers if wanted in (None, reader.name)]


def _seen(first: bytes) -> str:
    """What the file looks like instead."""
    if b"\0" in first[:4096]:
        return "it is binary, and no TensorBoard event file"
    text = first.decode("utf-8", "replace").strip()
    line = text.splitlines()[0][:80] if text else ""
    hint = "" if "oss" in text else "; the word loss is not in it"
    return f"no line has a step and a loss (it begins with {line!r}){hint}"

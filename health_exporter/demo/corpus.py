"""Real text that is present on every machine: the standard library's own source."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from health_exporter.errors import HealthExporterError

VOCABULARY = 256
"""A token is a byte."""

CORPUS_BYTES = 4_000_000
"""What the demo reads at most: more than its default run consumes, read in well under a second."""

# Not text of the same kind as the rest: tables of character codes, generated documentation and
# test data are far easier or harder to predict, and would make the loss uneven.
_LEFT_OUT = frozenset(
    {
        "__pycache__",
        "encodings",
        "idlelib",
        "lib2to3",
        "pydoc_data",
        "site-packages",
        "dist-packages",
        "test",
        "tests",
    }
)


class CorpusError(HealthExporterError):
    """No text to train on was found."""


def standard_library() -> Path:
    """Directory of the running interpreter's standard library."""
    found = sysconfig.get_path("stdlib")
    return Path(found) if found else Path(os.__file__).parent


def read_corpus(root: Path | None = None, limit: int = CORPUS_BYTES) -> bytes:
    """Bytes of the ``.py`` files below `root`, in the order of their paths.

    A file or folder that cannot be read is passed over. The same installation always gives the
    same bytes.

    Args:
        root: Where to look; the standard library of this interpreter by default.
        limit: Most bytes to return (> 0).

    Raises:
        CorpusError: Not a single byte could be read below `root`.
    """
    root = standard_library() if root is None else root
    text = bytearray()
    for path in _source_files(root):
        try:
            text += path.read_bytes()
        except OSError:
            continue
        if len(text) >= limit:
            break
    if not text:
        raise CorpusError(f"no readable Python source below {root}")
    return bytes(text[:limit])


def _source_files(root: Path) -> list[Path]:
    """Paths of the ``.py`` files below `root`, sorted; without folders that cannot be listed."""
    found: list[Path] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _LEFT_OUT]
        found.extend(Path(folder, name) for name in names if name.endswith(".py"))
    return sorted(found)

"""Files that are replaced whole: a reader sees the old one or the new, also after `kill -9`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: Path, *, shared: bool = False, sync: bool) -> Iterator[BinaryIO]:
    """Write a file beside `path` that takes its place when the block is left, if it is left well.

    Args:
        path: The file; its folder exists.
        shared: Several processes may do so at once. Each then has a draft of its own, which it
            removes when it fails; a single writer's draft has one name for ever, so that what
            `kill -9` leaves of it is overwritten the next time.
        sync: Wait for the disk before the old file is given up, or a power cut may leave an empty
            one.

    Raises:
        OSError: It could not be written; the old file is as it was.
    """
    name = f".{path.name}.{os.getpid()}.tmp" if shared else f"{path.name}.tmp"
    draft = path.with_name(name)
    try:
        with draft.open("wb") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        if shared:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, text: str, *, sync: bool) -> None:
    """Replace a file of one writer by `text`; with `sync`, it survives a power cut from then on.

    Raises:
        OSError: It could not be written; the old file is as it was.
    """
    with replacing(path, sync=sync) as file:
        file.write(text.encode())
    if not sync:
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

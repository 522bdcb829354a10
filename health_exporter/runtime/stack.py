"""Where a thread is, for when it does not move."""

from __future__ import annotations

import faulthandler
import os
import sys
import sysconfig
import time
from pathlib import Path
from types import FrameType

_LIBRARIES = tuple(
    path + os.sep
    for path in {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    if path
)


def position(thread_id: int) -> str:
    """Innermost place of a thread in the user's own code, as in `train.py:42 load_batch`.

    Ranks that wait for each other all stand in the same line of the same loop; the one that they
    wait for stands elsewhere. Frames of the standard library and of installed packages are passed
    over unless there are no others.

    Args:
        thread_id: `threading.Thread.ident`.

    Returns:
        The place; "" when the thread is gone.
    """
    frame: FrameType | None = sys._current_frames().get(thread_id)
    innermost = frame
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_LIBRARIES) and not name.startswith("<"):
            return _place(frame)
        frame = frame.f_back
    return "" if innermost is None else _place(innermost)


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{os.path.basename(code.co_filename)}:{frame.f_lineno} {code.co_name}"


def dump_stacks(folder: Path, rank: int) -> Path:
    """Write the Python stacks of all threads into a new file.

    Raises:
        OSError: It cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    path = folder / f"stacks-rank{rank}-{stamp}.txt"
    with path.open("w", encoding="utf-8") as file:
        faulthandler.dump_traceback(file=file, all_threads=True)
    return path

"""What the ranks tell the launcher: a JSON object a line, on the standard output they share."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

_MARK = "@demo "


def emit(kind: str, **fields: Any) -> None:
    """Tell the launcher, in one write.

    The pipe is shared by all ranks; a single write below PIPE_BUF (4,096 bytes on Linux) is never
    mixed with another's.
    """
    line = _MARK + json.dumps({"event": kind, **fields}) + "\n"
    sys.stdout.flush()
    os.write(1, line.encode())


def parse(line: str) -> dict[str, Any] | None:
    """The event in a line, or None for any other line."""
    if not line.startswith(_MARK):
        return None
    try:
        event = json.loads(line.removeprefix(_MARK))
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None

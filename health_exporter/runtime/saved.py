"""What an earlier process of the run left on disk, and putting it aside."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from health_exporter.errors import StateError

SCHEMA_VERSION = 1
FILES = ("state.json", "report.json", "events.jsonl")


def read_state(folder: Path, run: str) -> Mapping[str, Any] | None:
    """`state.json` of the run's folder; None if there is none.

    Raises:
        StateError: It cannot be read, is damaged, of another run, or of a newer version.
    """
    path = folder / "state.json"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(f"{path} cannot be read: {error}") from error
    try:
        state = json.loads(text)
    except ValueError as error:
        raise StateError(f"{path} is damaged: {error}") from error
    if not isinstance(state, dict) or "schema_version" not in state:
        raise StateError(f"{path} is no saved state of this package")
    if state["schema_version"] != SCHEMA_VERSION:
        raise StateError(
            f"{path} has schema_version {state['schema_version']!r}, "
            f"this package reads {SCHEMA_VERSION}"
        )
    if state.get("run") != run:
        raise StateError(f"{path} is of run {state.get('run')!r}, not of {run!r}")
    return state


def put_aside(folder: Path) -> Path | None:
    """Move an earlier record into a subfolder of its own.

    Returns:
        The subfolder; None if there was nothing to move.

    Raises:
        OSError: It cannot be moved.
    """
    present = [folder / name for name in FILES if (folder / name).exists()]
    if not present:
        return None
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for number in range(1, 1000):
        aside = folder / (f"previous-{stamp}" + (f"-{number}" if number > 1 else ""))
        try:
            aside.mkdir()
        except FileExistsError:
            continue
        for path in present:
            path.rename(aside / path.name)
        return aside
    raise OSError(f"no free name for an earlier record in {folder}")

"""Which servers a test starts: those on PATH, or newer ones where `tests/run` has fetched them."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from typing import Any

import pytest

ON_PATH = ""
_VARIABLE = "HEALTH_EXPORTER_NEWER_SERVERS"
# Read when tests are collected: while they run, no setting of the machine is in the environment.
_NEWER = os.path.abspath(folder) if (folder := os.environ.get(_VARIABLE)) else ""


def versions(program: str) -> list[Any]:
    """Folders for `use`, each named by the version that `program` has there.

    Without newer servers the second one is skipped.
    """
    newer = pytest.param(
        _NEWER,
        id=f"{program}-{_version(program, _NEWER) if _NEWER else 'newer'}",
        marks=[] if _NEWER else pytest.mark.skip("no newer servers, see tests/fetch_servers"),
    )
    return [pytest.param(ON_PATH, id=f"{program}-{_version(program, ON_PATH)}"), newer]


def on_both(program: str) -> pytest.MarkDecorator:
    """Runs a test that takes the fixture `servers` with either version."""
    return pytest.mark.parametrize("servers", versions(program), indirect=True)


def use(folder: str, patch: pytest.MonkeyPatch) -> None:
    """Programs are found in `folder` first, until `patch` is undone."""
    if folder:
        patch.setenv("PATH", folder, prepend=os.pathsep)


@functools.cache
def _version(program: str, folder: str) -> str:
    path = shutil.which(program, path=folder or None)
    if path is None and folder:
        raise pytest.UsageError(f"{_VARIABLE}={folder}: there is no {program}")
    if path is None:
        return "missing"  # of which the test complains
    shown = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
    found = re.search(r"version (\d+\.\d+)", shown.stdout + shown.stderr)
    return found[1] if found else "unknown"

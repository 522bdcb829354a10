"""Exporters of a test, which end with it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from health_exporter import HealthExporter, TrainingHealthMonitor
from tests.unit.runtime.recorded import BEGUN, kill

MakeExporter = Callable[..., HealthExporter]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeExporter]:
    """Makes an exporter on a free loopback port, its record in the test's folder."""
    with contextlib.ExitStack() as opened:

        def start(monitor: TrainingHealthMonitor | None = None, **settings: Any) -> HealthExporter:
            defaults = {
                "run": "r",
                "port": 0,
                "address": "127.0.0.1",
                "receipt_dir": tmp_path,
                "linger_s": 0,
            }
            exporter = HealthExporter(monitor, **{**defaults, **settings})
            opened.callback(exporter.close)
            return exporter

        yield start


@pytest.fixture(autouse=True)
def _no_run_outlives_its_test() -> Iterator[None]:
    yield
    while BEGUN:
        kill(BEGUN.pop())


@pytest.fixture(autouse=True)
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Files that would have been fsynced, by inode; the tests wait for no disk."""
    inodes: list[int] = []
    monkeypatch.setattr("os.fsync", lambda fd: inodes.append(os.fstat(fd).st_ino))
    return inodes

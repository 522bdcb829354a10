"""Runs that leave a record on disk, as the exporter of a real process would, and are gone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from health_exporter import TrainingHealthMonitor
from health_exporter.runtime.identity import Identity
from health_exporter.runtime.run import Run
from health_exporter.runtime.settings import Settings

START = 1_700_000_000.0

BEGUN: list[Run] = []
"""Runs that write; they end with the test."""


class Clock:
    """Unix time that a test sets."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def identity(**changes: Any) -> Identity:
    given = {"rank": 0, "local_rank": 0, "world_size": 1, "host": "here", "attempt": 0, **changes}
    return Identity(**given)


def take_over(
    folder: Path, clock: Callable[[], float] = time.time, run: str = "r", **settings: Any
) -> Run:
    """The run of a new process that has read the record and written nothing yet."""
    made = Run(
        Settings(run=run, receipt_dir=str(folder), **settings),
        identity(),
        TrainingHealthMonitor(),
        wall=clock,
    )
    made.take_over()
    return made


def begin(folder: Path, clock: Callable[[], float], run: str = "r", **settings: Any) -> Run:
    """The run of a process that has just started."""
    made = take_over(folder, clock, run, **settings)
    made.start()
    BEGUN.append(made)
    return made


def observe(run: Run, *steps: int, loss: float = 2.0, restart: bool = False) -> None:
    for step in steps:
        run.observe(step, loss, grad_norm=None, step_time_s=1.0, batch_size=None, restart=restart)


def kill(run: Run) -> Run:
    """Its process is gone: nothing more is written."""
    run.receipts.close()
    return run


def loads(text: str) -> Any:
    """Strict JSON."""

    def refuse(constant: str) -> float:
        raise AssertionError(f"not strict JSON: {constant}")

    return json.loads(text, parse_constant=refuse)

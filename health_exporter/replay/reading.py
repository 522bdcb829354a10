"""Files through readers and ordering into the judgement, with a progress bar."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from health_exporter.replay.detection import detect
from health_exporter.replay.error import LogError
from health_exporter.replay.judging import Judging
from health_exporter.replay.ordering import Ordering
from health_exporter.replay.reader import Guess, Reader
from health_exporter.replay.row import Row
from health_exporter.replay.source import Source
from health_exporter.replay.tally import Tally


class Log(NamedTuple):
    """A file, and what it was taken for."""

    path: Path
    reader: Reader
    guess: Guess


def find(paths: Sequence[Path], mapping: Mapping[str, str], wanted: str | None) -> list[Log]:
    """Tell the format of each file.

    Raises:
        LogError: One of them is no training log.
    """
    return [Log(path, *detect(path, mapping, wanted)) for path in paths]


def judge(logs: Sequence[Log], judging: Judging) -> dict[str, Any]:
    """Read the files in their order and judge their steps as one run.

    Returns:
        What was read, what was left out, and what was found.

    Raises:
        LogError: A file has no row that can be read, or there is no loss in any of them.
    """
    ordering = Ordering()
    tallies = [Tally() for _ in logs]
    with _progress([log.path for log in logs]) as (bar, tasks):
        for index, log in enumerate(logs):
            with Source(log.path) as source:
                rows = _told(log, tallies[index], source, bar, tasks[index])
                judging.run(ordering.steps(rows), index)
    for log, tally in zip(logs, tallies, strict=True):
        if not tally.n_rows:
            raise LogError(f"{log.path} holds no rows that can be read")
    if not judging.n_steps:
        raise LogError(f"no row has a loss (columns: {tallies[0].columns})")
    return {
        "files": [_file(log, tally) for log, tally in zip(logs, tallies, strict=True)],
        "left_out": {
            "of steps seen already": ordering.n_duplicates,
            "that came late": ordering.n_out_of_order,
            "without a loss": ordering.n_without_loss,
            "of other ranks": sum(tally.n_other_ranks for tally in tallies),
            "steps skipped by the loss scaler": sum(tally.n_skipped_steps for tally in tallies),
            "values that cannot be": ordering.n_unusable,
        },
        **judging.report(),
    }


def _file(log: Log, tally: Tally) -> dict[str, Any]:
    return {
        "path": str(log.path),
        "format": log.reader.title,
        "why": log.guess.why,
        "confidence": log.guess.confidence,
        "columns": tally.columns,
        "unit": tally.unit,
        "n_lines": tally.n_lines,
        "n_rows": tally.n_rows,
        "n_damaged": tally.n_damaged,
        "damaged": [list(pair) for pair in tally.damaged],
        "notes": tally.notes,
    }


# The bar is told of every so many rows: a row takes microseconds, an update of the bar hundreds.
_ROWS_AN_UPDATE = 4096


def _told(log: Log, tally: Tally, source: Source, bar: Progress, task: TaskID) -> Iterator[Row]:
    """The rows of a file; the bar is told how far it has been read."""
    try:
        for count, row in enumerate(log.reader.rows(source.stream, tally)):
            yield row
            if not count % _ROWS_AN_UPDATE:
                bar.update(task, completed=source.position())
    except OSError as error:
        raise LogError(f"{log.path} cannot be read on: {error.strerror or error}") from error


@contextlib.contextmanager
def _progress(paths: Sequence[Path]) -> Iterator[tuple[Progress, list[TaskID]]]:
    """A bar for each file, on a terminal."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        yield bar, [bar.add_task(path.name, total=path.stat().st_size) for path in paths]

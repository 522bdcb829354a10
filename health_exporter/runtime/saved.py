"""What a process leaves on disk for the next one of the run: made, read again, and put aside."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from health_exporter.catalog import STEP_SECONDS_BOUNDS
from health_exporter.core import argument, strict_json
from health_exporter.core.anomaly import Anomaly
from health_exporter.errors import StateError
from health_exporter.runtime.judge import Judge
from health_exporter.runtime.outage import OutageBook

SCHEMA_VERSION = 1
FILES = ("state.json", "report.json", "events.jsonl", "progress.json")

_ANOMALY_FIELDS = tuple(field.name for field in fields(Anomaly))
_COUNTERS = ("n_steps", "last_step", "lost_steps", "n_tokens", "n_restarts")
_BUCKETS = len(STEP_SECONDS_BOUNDS) + 1
_EVENT_FIELDS: Mapping[str, tuple[tuple[str, type], ...]] = {
    "anomaly": (("number", int), ("kind", str), ("step", int), ("detected_at_step", int)),
    "restart": (("number", int), ("step", int)),
    "state": (("state", str),),
}
"""What of an event is read again, and of which type it must be."""


def make_state(
    run: str, status: str, judge: Judge, outages: OutageBook, now: float
) -> dict[str, Any]:
    """What `state.json` holds: all that the next process needs.

    Args:
        run: Name of the run.
        status: One of `snapshot.RUN_STATES`.
        judge: The judgement so far.
        outages: Those of the ranks; read last, since what the judgement lacks is in the events.
        now: Unix time in seconds.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "run": run,
        "state": status,
        "written_time": now,
        "judge": judge.state(),
        "outages": outages.listed(),
    }


def make_progress(run: str, judge: Judge, now: float) -> dict[str, Any]:
    """What `progress.json` holds: the bare counters, which are written far more often."""
    view = judge.view
    return {
        "run": run,
        "written_time": now,
        "n_steps": view.n_steps,
        "first_step": judge.first_step,
        "last_step": view.step,
        "lost_steps": view.lost_steps,
        "n_tokens": view.n_tokens,
        "n_restarts": view.n_restarts,
        "duration_counts": view.duration_counts,
        "duration_sum_s": view.duration_sum_s,
        "productive_s": view.productive_s,
    }


def read_state(folder: Path, run: str) -> dict[str, Any] | None:
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


def read_events(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """The events in `events.jsonl`, and how many of its lines are damaged.

    The last line may be cut short by the end of the process that wrote it.
    """
    try:
        lines = (folder / "events.jsonl").read_bytes().split(b"\n")
    except OSError:
        return [], 0
    events = []
    damaged = 0
    for line in filter(None, lines):
        try:
            event = json.loads(line)
            event["time"] = argument.finite(event["time"], "time")
            usable = all(isinstance(event[k], t) for k, t in _EVENT_FIELDS.get(event["event"], ()))
        except (ValueError, KeyError, TypeError, RecursionError):
            usable = False
        if usable:
            events.append(event)
        else:
            damaged += 1
    return events, damaged


def read_progress(folder: Path, run: str) -> dict[str, Any] | None:
    """The counters of `progress.json`; None if there are none, or they cannot be used."""
    try:
        progress = json.loads((folder / "progress.json").read_text(encoding="utf-8"))
        for name in ("first_step", *_COUNTERS):
            if progress[name] is not None or name != "n_tokens":
                argument.integer(progress[name], name, minimum=0)
        for name in ("written_time", "productive_s", "duration_sum_s"):
            argument.nonnegative(progress[name], name)
        for count in progress["duration_counts"]:
            argument.integer(count, "duration_counts", minimum=0)
        usable = progress["run"] == run and len(progress["duration_counts"]) == _BUCKETS
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return dict(progress) if usable else None


def bring_up_to_date(state: dict[str, Any], folder: Path) -> None:
    """Add to a saved state what the process did after it was written: its counters and anomalies.

    Raises:
        StateError: The state is damaged.
    """
    try:
        judge = state["judge"]
        run = judge["monitor"]["run"]
        for event in read_events(folder)[0]:
            if event["event"] == "restart" and event.get("number", 0) > run["n_restarts"]:
                run["n_restarts"] = event["number"]
                run["restart_steps"].append(event["step"])
            if event["event"] == "anomaly" and event.get("number", 0) > run["n_anomalies"]:
                kind = event["kind"]
                run["n_anomalies"] = event["number"]
                run["anomalies_by_kind"][kind] = run["anomalies_by_kind"].get(kind, 0) + 1
                run["anomalies"].append({k: event[k] for k in _ANOMALY_FIELDS if k in event})
                judge["last_anomalies"][kind] = [event["time"], event["detected_at_step"]]
        progress = read_progress(folder, state["run"])
        if progress is not None and progress["n_steps"] > run["n_steps"]:
            run.update({name: progress[name] for name in _COUNTERS})
            judge["first_step"] = progress["first_step"]
            judge["duration_counts"] = progress["duration_counts"]
            judge["duration_sum_s"] = progress["duration_sum_s"]
            judge["goodput"]["productive_s"] = progress["productive_s"]
            judge["goodput"]["last_step"] = progress["last_step"]
    except (KeyError, TypeError, AttributeError) as error:
        raise StateError(f"{folder / 'state.json'} is damaged: {error!r}") from error


def outages(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The ranks' outages in a saved state.

    Raises:
        StateError: The state is damaged.
    """
    listed = state.get("outages")
    fields = ("kind", "rank", "ended_at")
    if not isinstance(listed, list) or not all(
        isinstance(outage, dict) and all(name in outage for name in fields) for outage in listed
    ):
        raise StateError("the outages of the saved state are damaged")
    return [strict_json.encode(outage) for outage in listed]


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

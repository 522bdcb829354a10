"""A run's receipt as it can be told from the files, also after `kill -9`."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from health_exporter.errors import ReceiptError
from health_exporter.runtime.probe import ENDED, process_status
from health_exporter.runtime.report import (
    REPORT_SCHEMA_VERSION,
    iso_time,
    parse_iso_time,
    verdict,
)
from health_exporter.runtime.saved import read_events, read_progress
from health_exporter.snapshot import TERMINAL_STATES

_DISCONTINUITY = "restart_discontinuity"

_MISSED_WRITES = 4
"""Intervals without a new report after which a run on another host counts as lost."""


def read_receipt(path: Path, *, now: float | None = None) -> dict[str, Any]:
    """The receipt in a file, a run's folder, or a folder of receipts that holds one run.

    Events that came after the last report are counted in, and a run whose process is gone without
    a goodbye has status `lost`.

    Args:
        path: `report.json`, or a folder.
        now: Unix time in seconds, to compare the report's age with; None: of now.

    Raises:
        ReceiptError: There is no receipt, it is damaged, or there are several.
    """
    file = _find(path)
    receipt = _read_report(file)
    try:
        return _complete(receipt, file, now)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError) as error:
        raise ReceiptError(f"{file} is damaged: {error!r}") from error


def _complete(receipt: dict[str, Any], file: Path, now: float | None) -> dict[str, Any]:
    """The receipt with what happened after it was written."""
    events, damaged = read_events(file.parent)
    progress = read_progress(file.parent, receipt["run"])
    _count_in(receipt, events, progress)
    if damaged:
        receipt["damaged_event_lines"] = damaged
    signs = [parse_iso_time(receipt["written_at"]), *(event["time"] for event in events)]
    if progress is not None:
        signs.append(float(progress["written_time"]))
    last_sign = max(signs)
    if receipt["status"] not in TERMINAL_STATES and _is_gone(receipt, last_sign, now):
        receipt["status"] = "lost"
        receipt["ended_at"] = None
    receipt["last_sign_at"] = iso_time(last_sign)
    receipt["path"] = str(file)
    receipt.update(verdict(receipt["status"], receipt))
    return receipt


def _find(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise ReceiptError(f"{path} does not exist")
    if (path / "report.json").is_file():
        return path / "report.json"
    found = sorted(path.glob("*/report.json"))
    if not found:
        raise ReceiptError(f"{path} holds no receipt: no report.json in it or one folder below")
    if len(found) > 1:
        names = ", ".join(str(file.parent) for file in found)
        raise ReceiptError(f"{path} holds the receipts of several runs; name one of {names}")
    return found[0]


def _read_report(file: Path) -> dict[str, Any]:
    try:
        receipt = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ReceiptError(f"{file} cannot be read: {error}") from error
    required = ("schema_version", "run", "status", "written_at", "anomalies_by_kind", "restarts")
    missing = [key for key in required if not isinstance(receipt, dict) or key not in receipt]
    if missing:
        raise ReceiptError(f"{file} is no receipt: it lacks {', '.join(missing)}")
    if receipt["schema_version"] != REPORT_SCHEMA_VERSION:
        raise ReceiptError(
            f"{file} has schema_version {receipt['schema_version']!r}, "
            f"this package reads {REPORT_SCHEMA_VERSION}"
        )
    return dict(receipt)


def _count_in(
    receipt: dict[str, Any], events: list[dict[str, Any]], progress: Mapping[str, Any] | None
) -> None:
    """Add to the report what happened after it was written."""
    if progress is not None and progress["n_steps"] > receipt.get("n_steps", 0):
        receipt["n_steps"] = progress["n_steps"]
        receipt["last_step"] = progress["last_step"]
        receipt["restarts"]["lost_steps"] = progress["lost_steps"]
        elapsed = float(progress["written_time"]) - parse_iso_time(receipt["started_at"])
        receipt["goodput"] = min(1.0, progress["productive_s"] / elapsed) if elapsed > 0 else None
    written = parse_iso_time(receipt["written_at"])
    restarts = receipt["restarts"]
    for event in events:
        step = event.get("step")
        if event["event"] == "anomaly" and event["number"] > receipt.get("n_anomalies", 0):
            kind = event["kind"]
            receipt["n_anomalies"] = event["number"]
            counts = receipt["anomalies_by_kind"]
            counts[kind] = counts.get(kind, 0) + 1
            anomaly = {k: v for k, v in event.items() if k not in ("time", "event", "number")}
            receipt.setdefault("anomalies", []).append(anomaly)
            restarts["continuity_ok"] = restarts["continuity_ok"] and kind != _DISCONTINUITY
        elif event["event"] == "restart" and event["number"] > restarts.get("n", 0):
            restarts["n"] = event["number"]
            restarts.setdefault("steps", []).append(step)
        elif event["event"] == "state" and event["time"] >= written:
            receipt["status"] = event["state"]
            receipt["exception"] = event.get("exception")
        if event["time"] >= written and isinstance(step, int):
            receipt["last_step"] = max(step, receipt.get("last_step") or 0)


def _is_gone(receipt: Mapping[str, Any], last_sign: float, now: float | None) -> bool:
    if receipt.get("host") == socket.gethostname() and isinstance(receipt.get("pid"), int):
        return not _lives(receipt["pid"], parse_iso_time(receipt["attempt_started_at"]))
    age = (time.time() if now is None else now) - last_sign
    return age > _MISSED_WRITES * float(receipt.get("receipt_interval_s", 30.0))


def _lives(pid: int, since: float) -> bool:
    """Whether the process runs, and is not a later one that was given the same number."""
    try:
        status = process_status(pid)
    except OSError:
        status = None
    if status is None:
        return _answers(pid) if not Path("/proc/self/stat").exists() else False
    state, start_ticks = status
    if state in ENDED:
        return False
    boot = next(
        (float(line.split()[1]) for line in _lines(Path("/proc/stat")) if line.startswith("btime")),
        0.0,
    )
    started = boot + float(start_ticks) / os.sysconf("SC_CLK_TCK")
    return started <= since + 2.0  # btime is in whole seconds


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return

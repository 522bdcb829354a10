"""A run's receipt as it can be told from the files, also after `kill -9`."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from health_exporter.errors import ReceiptError
from health_exporter.runtime.run import verdict
from health_exporter.snapshot import TERMINAL_STATES

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
    events, damaged = _read_events(file.parent / "events.jsonl")
    _count_in(receipt, events)
    if damaged:
        receipt["damaged_event_lines"] = damaged
    last_sign = max([_unix(receipt["written_at"]), *(event["time"] for event in events)])
    if receipt["status"] not in TERMINAL_STATES and _is_gone(receipt, last_sign, now):
        receipt["status"] = "lost"
        receipt["ended_at"] = None
    receipt["last_sign_at"] = (
        datetime.fromtimestamp(last_sign).astimezone().isoformat("T", "seconds")
    )
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
    except (OSError, ValueError) as error:
        raise ReceiptError(f"{file} cannot be read: {error}") from error
    required = ("schema_version", "run", "status", "written_at", "anomalies_by_kind", "restarts")
    missing = [key for key in required if not isinstance(receipt, dict) or key not in receipt]
    if missing:
        raise ReceiptError(f"{file} is no receipt: it lacks {', '.join(missing)}")
    return dict(receipt)


def _read_events(file: Path) -> tuple[list[dict[str, Any]], int]:
    """The events, and how many lines are damaged (the last one may be cut short)."""
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError:
        return [], 0
    events = []
    damaged = 0
    for line in filter(None, lines):
        try:
            event = json.loads(line)
            float(event["time"])
            str(event["event"])
        except (ValueError, KeyError, TypeError):
            damaged += 1
        else:
            events.append(event)
    return events, damaged


def _count_in(receipt: dict[str, Any], events: list[dict[str, Any]]) -> None:
    """Add to the report what happened after it was written."""
    written = _unix(receipt["written_at"])
    for event in events:
        if event["time"] <= written:
            continue
        step = event.get("step")
        if isinstance(step, int) and step > (receipt.get("last_step") or -1):
            receipt["last_step"] = step
        if event["event"] == "anomaly":
            kinds = receipt["anomalies_by_kind"]
            kinds[event["kind"]] = kinds.get(event["kind"], 0) + 1
            receipt["n_anomalies"] = receipt.get("n_anomalies", 0) + 1
            anomaly = {k: v for k, v in event.items() if k not in ("time", "event")}
            receipt.setdefault("anomalies", []).append(anomaly)
            if event["kind"] == "restart_discontinuity":
                receipt["restarts"]["continuity_ok"] = False
        elif event["event"] == "restart":
            restarts = receipt["restarts"]
            restarts["n"] = restarts.get("n", 0) + 1
            restarts.setdefault("steps", []).append(step)
            restarts["lost_steps"] = restarts.get("lost_steps", 0) + event.get("lost_steps", 0)
        elif event["event"] == "state":
            receipt["status"] = event["state"]
            receipt["exception"] = event.get("exception")


def _is_gone(receipt: Mapping[str, Any], last_sign: float, now: float | None) -> bool:
    if receipt.get("host") == socket.gethostname() and isinstance(receipt.get("pid"), int):
        return not _lives(receipt["pid"], _unix(receipt["attempt_started_at"]))
    age = (time.time() if now is None else now) - last_sign
    return age > _MISSED_WRITES * float(receipt.get("receipt_interval_s", 30.0))


def _lives(pid: int, since: float) -> bool:
    """Whether the process runs, and is not a later one that was given the same number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return _answers(pid) if not Path("/proc/self/stat").exists() else False
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return False
    boot = next(
        (float(line.split()[1]) for line in _lines(Path("/proc/stat")) if line.startswith("btime")),
        0.0,
    )
    started = boot + float(fields[19]) / os.sysconf("SC_CLK_TCK")
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


def _unix(moment: str) -> float:
    return datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()

"""What a receipt says beside the judgement: its version, verdict, times and exception."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from health_exporter.core.anomaly import GRAVE_KINDS

log = logging.getLogger(__name__)

REPORT_SCHEMA_VERSION = 1
"""Of `report.schema.json`; raised when an older reader would misunderstand a receipt."""

_MAX_MESSAGE = 2000
"""Characters of an exception's text: some print whole tensors."""


def verdict(status: str, report: Mapping[str, Any]) -> dict[str, Any]:
    """Whether a person should look at the run, and why: keys `healthy` and `reasons`.

    It is not healthy if it failed or was lost, had an anomaly of `GRAVE_KINDS`, or a rank failed.
    """
    kinds = report["anomalies_by_kind"]
    reasons = {"failed": ["the run failed"], "lost": ["the run was lost"]}.get(status, [])
    reasons += [f"{kind} x {kinds[kind]}" for kind in GRAVE_KINDS if kinds.get(kind)]
    # Rank 0's own end is the run's.
    reasons += [
        f"rank {suspect['rank']} failed"
        for suspect in report.get("suspects", ())
        if suspect["reason"] == "failed" and suspect["rank"] != 0
    ]
    return {"healthy": not reasons, "reasons": reasons}


def describe_exception(error: BaseException) -> dict[str, str]:
    """Type and text of what ended the run."""
    try:
        message = str(error)[:_MAX_MESSAGE]
    except Exception as problem:  # noqa: BLE001  # the trainer's own class; the rest is worth more
        log.debug("the exception has no text: %r", problem)
        message = ""
    return {"type": type(error).__name__, "message": message}


def iso_time(unix_time: float) -> str:
    """A Unix time in seconds as a receipt has it, in UTC: `2025-03-01T12:00:00.000Z`."""
    moment = datetime.fromtimestamp(unix_time, tz=timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_iso_time(moment: str) -> float:
    """The Unix time in seconds that `iso_time` was given.

    Raises:
        ValueError: It is no such time.
    """
    return datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()

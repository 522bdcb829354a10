"""What can be drawn of a receipt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import nan
from typing import Any

from health_exporter.core import strict_json
from health_exporter.replay.curve import NAMES, Curve


def curve_of_receipt(receipt: Mapping[str, Any]) -> tuple[Curve, list[dict[str, Any]]]:
    """The curves and events of a receipt, as far as it has them.

    The curves are under `history`, as lists with an entry for each stretch of steps; a receipt
    without them still has its anomalies and resumes.
    """
    curve = Curve()
    for column in _columns(receipt.get("history")):
        if column.get("restart"):
            curve.cut()
        step = column["first_step"]
        for end in ("min", "max"):
            numbers = [strict_json.number(column.get(f"{name}_{end}")) for name in NAMES]
            edges = [strict_json.number(column.get(n)) for n in ("baseline", "baseline_edge")]
            curve.add(step, *numbers, *(nan if edge is None else edge for edge in edges))
    events: list[dict[str, Any]] = [
        {"kind": anomaly.get("kind"), "first_step": anomaly["step"], "value": anomaly.get("value")}
        for anomaly in _records(receipt.get("anomalies"))
    ]
    restarts = receipt.get("restarts")
    steps = restarts.get("steps") if isinstance(restarts, Mapping) else None
    events += [
        {"kind": "restart", "first_step": step}
        for step in (steps if isinstance(steps, list) else [])
        if isinstance(step, int)
    ]
    return curve, events


def _columns(history: object) -> Iterator[Mapping[str, Any]]:
    """The table of the history, row by row; nothing where it is damaged."""
    lists = {
        name: values
        for name, values in (history.items() if isinstance(history, Mapping) else ())
        if isinstance(values, list)
    }
    for values in zip(*lists.values(), strict=False):
        column = dict(zip(lists, values, strict=True))
        if isinstance(column.get("first_step"), int):
            yield column


def _records(value: object) -> Iterator[Mapping[str, Any]]:
    for item in value if isinstance(value, list) else []:
        if isinstance(item, Mapping) and isinstance(item.get("step"), int):
            yield item

"""What can be drawn of a receipt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from health_exporter.core import strict_json
from health_exporter.replay.curve import Curve


def curve_of_receipt(receipt: Mapping[str, Any]) -> tuple[Curve, list[dict[str, Any]]]:
    """The curves and events of a receipt, as far as it has them.

    Its newest steps are under `recent_steps`, objects with `step`, `loss`, `grad_norm`,
    `step_time_s` and `restart`; a receipt without them still has its anomalies and resumes.
    """
    curve = Curve()
    for record in _records(receipt.get("recent_steps")):
        numbers = [strict_json.number(record.get(name)) for name in ("loss", "grad_norm",
                                                                      "step_time_s")]  # fmt: skip
        if record.get("restart"):
            curve.cut()
        curve.add(record["step"], *numbers)
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


def _records(value: object) -> Iterator[Mapping[str, Any]]:
    for item in value if isinstance(value, list) else []:
        if isinstance(item, Mapping) and isinstance(item.get("step"), int):
            yield item

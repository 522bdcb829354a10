"""What backends make of OTLP metrics: the rules of the OpenTelemetry specification ("Prometheus and
OpenMetrics Compatibility", OTLP metric points to Prometheus), with the unit tables that Prometheus'
receiver, the collector's exporters and VictoriaMetrics share."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from prometheus_client.utils import floatToGoString

Series = tuple[str, frozenset[tuple[str, str]]]
"""Name and labels."""

UNITS = {
    "d": "days",
    "h": "hours",
    "min": "minutes",
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
    "By": "bytes",
    "KiBy": "kibibytes",
    "MiBy": "mebibytes",
    "GiBy": "gibibytes",
    "TiBy": "tibibytes",
    "KBy": "kilobytes",
    "MBy": "megabytes",
    "GBy": "gigabytes",
    "TBy": "terabytes",
    "m": "meters",
    "V": "volts",
    "A": "amperes",
    "J": "joules",
    "W": "watts",
    "g": "grams",
    "Cel": "celsius",
    "Hz": "hertz",
    "1": "",
    "%": "percent",
}
PER_UNITS = {
    "s": "second",
    "m": "minute",
    "h": "hour",
    "d": "day",
    "w": "week",
    "mo": "month",
    "y": "year",
}


def words(text: str) -> list[str]:
    return [word for word in re.split(r"[^a-zA-Z0-9:]+", text) if word]


def prometheus_name(name: str, unit: str, kind: str) -> str:
    """Name that a metric is stored under.

    Args:
        name: Name in OpenTelemetry.
        unit: Its unit.
        kind: `gauge`, `sum` (monotonic) or `histogram`.
    """
    parts = words(name)
    main, _, per = (part.strip() for part in unit.partition("/"))
    if "{" not in main:  # an annotation is no unit
        suffix = "_".join(words(UNITS.get(main, main)))
        if suffix and suffix not in parts:
            parts.append(suffix)
    if per and "{" not in per:
        suffix = "per_" + "_".join(words(PER_UNITS.get(per, per)))
        if suffix not in parts:
            parts.append(suffix)
    last = {"sum": "total"}.get(kind, "ratio" if kind == "gauge" and unit == "1" else "")
    if last:
        parts = [part for part in parts if part != last] + [last]
    return "_".join(parts)


def translated(request: Any) -> dict[Series, float]:
    """The series of an `ExportMetricsServiceRequest`, without those of the resource."""
    series: dict[Series, float] = {}
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for (name, labels), value in _of_metric(metric):
                    assert (name, labels) not in series, f"{name} {labels} twice"
                    series[name, labels] = value
    return series


def _of_metric(metric: Any) -> Iterable[tuple[Series, float]]:
    kind = metric.WhichOneof("data")
    name = prometheus_name(metric.name, metric.unit, kind)
    for point in getattr(metric, kind).data_points:
        if point.flags & 1:  # no recorded value: the series ends
            continue
        labels = _labels(point.attributes)
        if kind != "histogram":
            yield (name, labels), getattr(point, point.WhichOneof("value"))
            continue
        yield (f"{name}_count", labels), float(point.count)
        yield (f"{name}_sum", labels), point.sum
        total = 0
        bounds = [*point.explicit_bounds, float("inf")]
        for bound, count in zip(bounds, point.bucket_counts, strict=True):
            total += count
            yield (f"{name}_bucket", labels | {("le", floatToGoString(bound))}), float(total)


def _labels(attributes: Any) -> frozenset[tuple[str, str]]:
    pairs = (("_".join(words(pair.key)), pair.value.string_value) for pair in attributes)
    return frozenset((name, value) for name, value in pairs if value)  # empty is absent

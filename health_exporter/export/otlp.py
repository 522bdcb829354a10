"""The catalogue as OpenTelemetry metrics.

The points are made straight from a snapshot, and not by instruments of a `MeterProvider`, because

- all points of a push then belong to the same step, as those of a scrape do;
- a NaN is pushed as the NaN that it is: instruments drop it, so that whoever reads the series goes
  on seeing the last finite loss, and the run looks healthy;
- a histogram has no observable instrument;
- a counter that goes on from an earlier process says since when it has counted, so that nothing
  takes the whole value for an increase at a restart;
- temporality is cumulative whatever the environment prefers, and no global provider is involved.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as Instrument
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric as Family

from health_exporter.catalog import CATALOG, STEP_SECONDS_BOUNDS, Metric, Sample
from health_exporter.snapshot import RunView, Snapshot

_CUMULATIVE = AggregationTemporality.CUMULATIVE

# What the standard translation to Prometheus appends for a unit. Units in braces only annotate.
_SUFFIXES = {"s": "seconds", "By": "bytes", "1": "ratio"}
_PER_SUFFIXES = {"s": "second"}


_LOOKBACK_S = 300.0
"""For so long Prometheus goes on showing a series that gets no more samples, by default."""


class Gone(NamedTuple):
    """A series of a gauge that has no value any more, such as a rank that is suspected no longer.

    A scrape without it ends it; among pushes it has to be said, and again, as one may be lost.
    """

    name: str
    """In OpenTelemetry."""
    unit: str
    attributes: tuple[tuple[str, str], ...]


class Message(NamedTuple):
    """What one push says."""

    data: MetricsData
    gone: tuple[Gone, ...]
    time_unix_nano: int


def otlp_name(name: str, kind: str, unit: str) -> str:
    """Name in OpenTelemetry: the words of the Prometheus name that the translation does not add.

    Args:
        name: Name in Prometheus, with its unit and `_total`.
        kind: `counter`, `gauge` or `histogram`.
        unit: Unit in UCUM.
    """
    if kind == "counter":
        name = name.removesuffix("_total")
    main, _, per = unit.partition("/")
    if per:
        name = name.removesuffix(f"_per_{_PER_SUFFIXES[per]}")
    if main in _SUFFIXES:
        name = name.removesuffix(f"_{_SUFFIXES[main]}")
    return name.replace("_", ".")


def make_resource(run: str, rank: int, host: str, version: str) -> Resource:
    """Who pushes: `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` win over our defaults.

    All but the instance's id, which they would make the same for all ranks of a job; it stays the
    same across restarts, so that the series do.
    """
    defaults = {
        "service.namespace": "health_exporter",
        "service.name": "trainer",
        "service.version": version,
        "host.name": _utf8(host),
    }
    instance = {"service.instance.id": _utf8(f"{run}/{rank}")}
    return Resource(defaults).merge(OTELResourceDetector().detect()).merge(Resource(instance))


class MessageMaker:
    """Makes the messages of the pushes.

    Args:
        read: Gives the snapshot.
        resource: Who pushes.
        version: Version of this package.
        wall: Unix time in seconds.
    """

    def __init__(
        self,
        read: Callable[[], Snapshot],
        resource: Resource,
        *,
        version: str,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._read = read
        self._resource = resource
        self._wall = wall
        self._process_start = wall()
        self._scope = InstrumentationScope("health_exporter", version)
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._process = registry
        self._lock = threading.Lock()
        self._seen: set[Gone] = set()
        self._gone: dict[Gone, float] = {}

    def make(self) -> Message:
        """Every metric of the catalogue, and those of the process, as of now."""
        snapshot = self._read()
        unix_time = self._wall()
        now = _nanoseconds(unix_time)
        metrics = [
            metric for entry in CATALOG if (metric := self._instrument(entry, snapshot, now))
        ]
        gone = self._find_gone(metrics, unix_time)
        metrics += (self._process_instrument(family, now) for family in self._process.collect())
        scope_metrics = ScopeMetrics(scope=self._scope, metrics=metrics, schema_url="")
        resource_metrics = ResourceMetrics(
            resource=self._resource, scope_metrics=[scope_metrics], schema_url=""
        )
        return Message(MetricsData(resource_metrics=[resource_metrics]), gone, now)

    def _find_gone(self, metrics: Iterable[Instrument], now: float) -> tuple[Gone, ...]:
        """Gauges' series that were there within the time for which they would still be shown."""
        series = {
            Gone(
                metric.name,
                metric.unit or "",
                tuple((name, str(text)) for name, text in (point.attributes or {}).items()),
            )
            for metric in metrics
            if isinstance(metric.data, Gauge)
            for point in metric.data.data_points
        }
        with self._lock:  # the last push may be made beside one that is under way
            self._gone.update(dict.fromkeys(self._seen - series, now + _LOOKBACK_S))
            self._gone = {
                one: until for one, until in self._gone.items() if one not in series and until > now
            }
            self._seen = series
            return tuple(self._gone)

    def _instrument(self, metric: Metric, snapshot: Snapshot, now: int) -> Instrument | None:
        run = _utf8(snapshot.run)
        if metric.scope == "rank":
            common = {"run": run, "rank": str(snapshot.rank)}
            samples = metric.of_rank(snapshot.own)
            start = self._process_start
        elif snapshot.whole is None:
            return None
        else:
            view = snapshot.whole
            common = {"run": run}
            start = view.start_time
            if metric.carried_over and view.first_start_time is not None:
                start = view.first_start_time
            if metric.kind == "histogram":
                return _histogram(metric, common, view, _nanoseconds(start), now)
            samples = metric.of_run(view)
        points = [
            NumberDataPoint(
                attributes=attributes,
                start_time_unix_nano=_nanoseconds(start) if metric.kind == "counter" else 0,
                time_unix_nano=now,
                value=value,
            )
            for attributes, value in _attributed(common, metric.labels, samples)
        ]
        return _number(metric.name, metric.kind, metric.unit, metric.help, points)

    def _process_instrument(self, family: Family, now: int) -> Instrument:
        unit = next((u for u, s in _SUFFIXES.items() if family.name.endswith(f"_{s}")), "")
        is_counter = family.type == "counter"
        points = [
            NumberDataPoint(
                attributes={name: _utf8(value) for name, value in sample.labels.items()},
                start_time_unix_nano=_nanoseconds(self._process_start) if is_counter else 0,
                time_unix_nano=now,
                value=float(sample.value),
            )
            for sample in family.samples
        ]
        instrument = _number(family.name, family.type, unit, family.documentation, points)
        assert instrument is not None
        return instrument


def _attributed(
    common: Mapping[str, str], labels: Iterable[str], samples: Iterable[Sample]
) -> Iterator[tuple[dict[str, str], float]]:
    names = tuple(labels)
    for values, value in samples:
        own = {name: _utf8(text) for name, text in zip(names, values, strict=True)}
        yield {**common, **own}, float(value)


def _number(
    name: str, kind: str, unit: str, text: str, points: list[NumberDataPoint]
) -> Instrument | None:
    if not points:
        return None
    data: Sum | Gauge
    if kind == "counter":
        data = Sum(data_points=points, aggregation_temporality=_CUMULATIVE, is_monotonic=True)
    else:
        data = Gauge(data_points=points)
    return Instrument(name=otlp_name(name, kind, unit), description=text, unit=unit, data=data)


def _histogram(
    metric: Metric, attributes: dict[str, str], view: RunView, start: int, now: int
) -> Instrument:
    counts = view.last.duration_counts
    point = HistogramDataPoint(
        attributes=attributes,
        start_time_unix_nano=start,
        time_unix_nano=now,
        count=sum(counts),
        sum=view.last.duration_sum_s,
        bucket_counts=list(counts),
        explicit_bounds=list(STEP_SECONDS_BOUNDS),
        # Unknown: the extremes of the steps are not counted by bucket.
        min=None,  # type: ignore[arg-type]  # optional in the message
        max=None,  # type: ignore[arg-type]
    )
    return Instrument(
        name=otlp_name(metric.name, metric.kind, metric.unit),
        description=metric.help,
        unit=metric.unit,
        data=Histogram(data_points=[point], aggregation_temporality=_CUMULATIVE),
    )


def _nanoseconds(unix_time: float) -> int:
    return int(unix_time * 1e9)


def _utf8(text: str) -> str:
    """`text` with what no message can carry replaced: one bad name must not hold up all metrics."""
    return text.encode("utf-8", "replace").decode()

"""The catalogue as Prometheus text or OpenMetrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from health_exporter.catalog import CATALOG, STEP_SECONDS_BOUNDS, Metric
from health_exporter.snapshot import Snapshot, StepView

_STEP_SECONDS_LE = (*map(floatToGoString, STEP_SECONDS_BOUNDS), "+Inf")


class SnapshotCollector(Collector):
    """Yields every metric of the catalogue from one snapshot.

    Args:
        read: Gives the snapshot; called once a scrape, from any thread.
    """

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._read = read

    def describe(self) -> Iterator[Family]:
        """The families without samples: a registry need not collect to learn the names."""
        for metric in CATALOG:
            yield _family(metric)

    def collect(self) -> Iterator[Family]:
        """The families with the samples of now."""
        snapshot = self._read()
        for metric in CATALOG:
            family = _family(metric)
            _fill(family, metric, snapshot)
            if family.samples:
                yield family


def _family(metric: Metric) -> Family:
    labels = metric.all_labels
    if metric.kind == "counter":
        return CounterMetricFamily(metric.name, metric.help, labels=labels)
    if metric.kind == "histogram":
        return HistogramMetricFamily(metric.name, metric.help, labels=labels)
    return GaugeMetricFamily(metric.name, metric.help, labels=labels)


def _fill(family: Family, metric: Metric, snapshot: Snapshot) -> None:
    if metric.scope == "rank":
        common: tuple[str, ...] = (snapshot.run, str(snapshot.rank))
        samples = metric.of_rank(snapshot.own)
    elif snapshot.whole is None:
        return
    else:
        common = (snapshot.run,)
        samples = metric.of_run(snapshot.whole)
        if isinstance(family, HistogramMetricFamily):
            family.add_metric(common, *_buckets(snapshot.whole.last))
    for labels, value in samples:
        family.add_metric((*common, *labels), value)  # type: ignore[attr-defined]  # counter, gauge


def _buckets(view: StepView) -> tuple[list[tuple[str, float]], float]:
    total = 0
    cumulative: list[tuple[str, float]] = []
    for bound, count in zip(_STEP_SECONDS_LE, view.duration_counts, strict=True):
        total += count
        cumulative.append((bound, total))
    return cumulative, view.duration_sum_s


class MetricsPage:
    """Renders `/metrics`; owns its registry, so that exporters never share state.

    Args:
        read: Gives the snapshot.
    """

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(SnapshotCollector(read))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Body and content type, in the newest format that the `Accept` header admits."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

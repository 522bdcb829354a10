"""The metrics that are pushed are those that are scraped."""

from __future__ import annotations

import math
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import AggregationTemporality
from prometheus_client.parser import text_string_to_metric_families

from health_exporter.catalog import CATALOG, Metric
from health_exporter.core.standing import Suspect
from health_exporter.export.otlp import MessageMaker, make_resource, otlp_name
from health_exporter.export.otlp_sender import encode
from health_exporter.export.prometheus import MetricsPage
from health_exporter.snapshot import Snapshot
from tests.unit.export.otlp_sample import ATTEMPT_START, FIRST_START, full_snapshot, full_step
from tests.unit.export.otlp_translation import Series, prometheus_name, translated

NOW = ATTEMPT_START + 60.0
KIND_IN_OTLP = {"counter": "sum", "gauge": "gauge", "histogram": "histogram"}


def pushed(snapshot: Snapshot) -> Any:
    resource = make_resource("r", snapshot.rank, "gpu017", "1.2")
    return encode(MessageMaker(lambda: snapshot, resource, version="1.2", wall=lambda: NOW).make())


def scraped(snapshot: Snapshot) -> dict[Series, float]:
    body, _ = MetricsPage(lambda: snapshot).render("text/plain")
    return {
        (sample.name, frozenset((n, v) for n, v in sample.labels.items() if v)): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def points(request: Any) -> dict[str, Any]:
    """OpenTelemetry's names to the metrics' points."""
    metrics = request.resource_metrics[0].scope_metrics[0].metrics
    return {m.name: getattr(m, m.WhichOneof("data")).data_points for m in metrics}


def is_ours(series: Series) -> bool:
    return series[0].startswith("training_health_")


@pytest.mark.parametrize("metric", CATALOG, ids=lambda metric: metric.name)
def test_name_and_unit_translate_to_the_name_that_is_scraped(metric: Metric):
    name = otlp_name(metric.name, metric.kind, metric.unit)
    assert prometheus_name(name, metric.unit, KIND_IN_OTLP[metric.kind]) == metric.name


@pytest.mark.parametrize("metric", CATALOG, ids=lambda metric: metric.name)
def test_name_has_neither_its_unit_nor_total(metric: Metric):
    name = otlp_name(metric.name, metric.kind, metric.unit)
    assert not {"total", "ratio", "seconds", "second", "per"} & set(name.split("."))


@pytest.mark.parametrize("metric", CATALOG, ids=lambda metric: metric.name)
def test_series_and_values_are_those_of_the_scrape(metric: Metric):
    for rank in (0, 3):
        snapshot = full_snapshot(rank)
        names = {metric.name, *(f"{metric.name}_{end}" for end in ("bucket", "count", "sum"))}
        by_push = {s: v for s, v in translated(pushed(snapshot)).items() if s[0] in names}
        by_scrape = {s: v for s, v in scraped(snapshot).items() if s[0] in names}
        assert by_push == by_scrape
        assert by_push or (rank == 3 and metric.scope == "run")


def test_nothing_else_is_pushed_or_scraped():
    snapshot = full_snapshot()
    assert set(translated(pushed(snapshot))) == set(scraped(snapshot))


def test_what_is_unknown_is_absent_on_both_ways():
    step = full_step(loss=None, grad_norm=None, mfu=None, loss_judged=None, last_anomalies={})
    snapshot = full_snapshot(step=step)
    by_push, by_scrape = translated(pushed(snapshot)), scraped(snapshot)
    assert set(filter(is_ours, by_push)) == set(filter(is_ours, by_scrape))
    assert "training_health_loss" not in {name for name, _ in by_push}


def test_nan_loss_is_pushed_as_nan():
    values = [full_step(loss=2.0), full_step(loss=math.nan), full_step(loss=math.inf)]
    snapshot = full_snapshot()
    message = MessageMaker(lambda: snapshot, make_resource("r", 0, "h", "1.2"), version="1.2")
    seen = []
    for step in values:
        snapshot = full_snapshot(step=step)
        seen.append(points(encode(message.make()))["training.health.loss"][0].as_double)
    assert seen[0] == 2.0
    assert math.isnan(seen[1])
    assert seen[2] == math.inf


def test_every_sum_and_histogram_is_cumulative_and_counters_are_monotonic(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
    cumulative = AggregationTemporality.CUMULATIVE.value
    metrics = pushed(full_snapshot()).resource_metrics[0].scope_metrics[0].metrics
    counters = {otlp_name(m.name, m.kind, m.unit) for m in CATALOG if m.kind == "counter"}
    found = {m.name: m.sum for m in metrics if m.WhichOneof("data") == "sum"}
    assert set(found) == counters | {"process.cpu"}
    assert all(s.aggregation_temporality == cumulative and s.is_monotonic for s in found.values())
    (histogram,) = (m.histogram for m in metrics if m.WhichOneof("data") == "histogram")
    assert histogram.aggregation_temporality == cumulative


def test_counters_say_since_when_they_count():
    by_name = points(pushed(full_snapshot()))
    starts = {name: p[0].start_time_unix_nano / 1e9 for name, p in by_name.items()}
    assert starts["training.health.steps"] == FIRST_START
    assert starts["training.health.anomalies"] == FIRST_START
    assert starts["training.health.step.duration"] == FIRST_START
    # These begin again with every process.
    assert starts["training.health.rejected.observations"] == ATTEMPT_START
    assert starts["training.health.rank.progress"] == NOW


def test_all_points_have_the_time_of_the_push():
    times = {p.time_unix_nano for ps in points(pushed(full_snapshot())).values() for p in ps}
    assert times == {int(NOW * 1e9)}


def attributes(resource: Any) -> dict[str, Any]:
    return dict(resource.attributes)


def test_resource_names_the_service_the_host_and_the_rank():
    assert attributes(make_resource("llama", 3, "gpu017", "1.2")) == {
        "service.namespace": "health_exporter",
        "service.name": "trainer",
        "service.version": "1.2",
        "service.instance.id": "llama/3",
        "host.name": "gpu017",
    }


def test_resource_of_the_environment_wins_but_for_the_instance(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "pretraining")
    monkeypatch.setenv(
        "OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=same,k8s.pod.name=trainer-0"
    )
    found = attributes(make_resource("llama", 3, "gpu017", "1.2"))
    assert found["service.name"] == "pretraining"
    assert found["k8s.pod.name"] == "trainer-0"
    assert found["service.instance.id"] == "llama/3"


def test_text_that_is_no_utf8_does_not_hold_up_the_rest():
    request = pushed(full_snapshot(run="bad \ud800"))
    (run,) = {
        pair.value.string_value
        for point in points(request)["training.health.steps"]
        for pair in point.attributes
    }
    assert run == "bad ?"


def gone(request: Any) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    """Series that a push says are over, each in a metric of its own."""
    metrics = request.resource_metrics[0].scope_metrics[0].metrics
    found = [m for m in metrics if any(point.flags & 1 for point in m.gauge.data_points)]
    assert all(len(metric.gauge.data_points) == 1 for metric in found)
    return {
        (metric.name, frozenset((pair.key, pair.value.string_value) for pair in point.attributes))
        for metric in found
        for point in metric.gauge.data_points
    }


def suspects_of(*ranks: int) -> Snapshot:
    snapshot = full_snapshot()
    assert snapshot.whole is not None
    suspects = tuple(Suspect(rank, "h", "dead") for rank in ranks)
    return snapshot._replace(whole=snapshot.whole._replace(suspects=suspects))


def suspect(rank: int) -> tuple[str, frozenset[tuple[str, str]]]:
    labels = {"run": "llama 8b", "rank": str(rank), "host": "h", "reason": "dead"}
    return "training.health.suspect.rank", frozenset(labels.items())


def test_series_that_is_gone_is_said_to_be_over():
    now = NOW
    snapshot = suspects_of(3, 4)
    maker = MessageMaker(
        lambda: snapshot, make_resource("r", 0, "h", "1.2"), version="1.2", wall=lambda: now
    )
    assert gone(encode(maker.make())) == set()
    snapshot = suspects_of(4)
    assert gone(encode(maker.make())) == {suspect(3)}
    now += 15.0  # again, as that push may be lost
    snapshot = suspects_of()
    assert gone(encode(maker.make())) == {suspect(3), suspect(4)}
    now += 15.0
    snapshot = suspects_of(3)
    assert gone(encode(maker.make())) == {suspect(4)}
    now += 300.0  # by now nobody shows it any more
    assert gone(encode(maker.make())) == set()


def test_series_that_is_over_has_the_name_and_type_that_it_had():
    snapshot = full_snapshot(step=full_step(mfu=0.4))
    maker = MessageMaker(lambda: snapshot, make_resource("r", 0, "h", "1.2"), version="1.2")
    maker.make()
    snapshot = full_snapshot(step=full_step(mfu=None))
    metrics = encode(maker.make()).resource_metrics[0].scope_metrics[0].metrics
    (metric,) = (metric for metric in metrics if metric.name == "training.health.mfu")
    assert (metric.unit, metric.WhichOneof("data")) == ("1", "gauge")


@pytest.mark.parametrize(
    ("name", "unit", "kind", "expected"),
    [
        # As the documentation of Prometheus and of the collector has them.
        ("http.server.request.duration", "s", "histogram", "http_server_request_duration_seconds"),
        ("system.filesystem.usage", "By", "gauge", "system_filesystem_usage_bytes"),
        ("system.network.dropped", "{packets}", "sum", "system_network_dropped_total"),
        ("system.network.io", "By", "sum", "system_network_io_bytes_total"),
        ("memory.utilization", "1", "gauge", "memory_utilization_ratio"),
        ("requests", "1", "sum", "requests_total"),
        ("train.speed", "km/h", "gauge", "train_speed_km_per_hour"),
        ("cpu.seconds.total", "s", "sum", "cpu_seconds_total"),
        ("astro.light.speed", "m/s", "gauge", "astro_light_speed_meters_per_second"),
    ],
)
def test_the_translation_that_is_tested_against(name: str, unit: str, kind: str, expected: str):
    assert prometheus_name(name, unit, kind) == expected

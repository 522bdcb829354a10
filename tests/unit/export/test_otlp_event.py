"""Anomalies and restarts as log events."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from health_exporter.export.otlp import make_resource
from health_exporter.export.otlp_event import EventQueue
from health_exporter.export.otlp_http import HttpClient, SendError
from tests.unit.export.otlp_collector import Collector, ok, status

ANOMALY = {
    "kind": "loss_spike",
    "step": 41,
    "value": 9.5,
    "baseline": 2.0,
    "z_score": 12.0,
    "detected_at_step": 41,
    "rank": None,
    "number": 3,
}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture
def events(collector: Collector) -> EventQueue:
    client = HttpClient({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}, "logs")
    return EventQueue(
        client,
        make_resource("llama", 0, "gpu017", "1.2"),
        "llama",
        version="1.2",
        wall=lambda: 1.79e9,
    )


def records(collector: Collector) -> list[Any]:
    return [
        record
        for one in collector.logs
        for resource in one.message.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]


def attributes(record: Any) -> dict[str, Any]:
    return {p.key: getattr(p.value, p.value.WhichOneof("value")) for p in record.attributes}


def test_anomaly_is_an_event(collector: Collector, events: EventQueue):
    events.add("anomaly", ANOMALY)
    events.send()
    (record,) = records(collector)
    # Versions before 1.36 or so have no field for it, only the attribute.
    assert getattr(record, "event_name", "training.health.anomaly") == "training.health.anomaly"
    assert record.time_unix_nano == 1_790_000_000 * 10**9
    assert attributes(record) == {
        "event.name": "training.health.anomaly",
        "run": "llama",
        "kind": "loss_spike",
        "step": 41,
        "value": 9.5,
        "baseline": 2.0,
        "z_score": 12.0,
    }


def test_rank_of_an_outage_is_told(collector: Collector, events: EventQueue):
    events.add("anomaly", {**ANOMALY, "kind": "dead_rank", "rank": "3", "baseline": None})
    events.send()
    (record,) = records(collector)
    assert attributes(record)["rank"] == "3"
    assert "baseline" not in attributes(record)


def test_restart_is_an_event(collector: Collector, events: EventQueue):
    events.add("restart", {"number": 1, "step": 30, "last_step": 40, "lost_steps": 11})
    events.send()
    (record,) = records(collector)
    assert attributes(record) == {
        "event.name": "training.health.restart",
        "run": "llama",
        "step": 30,
        "last_step": 40,
        "lost_steps": 11,
    }


def test_other_events_and_no_events_are_no_push(collector: Collector, events: EventQueue):
    events.add("state", {"state": "running"})
    events.send()
    assert collector.received == []


def test_event_is_pushed_once(collector: Collector, events: EventQueue):
    events.add("anomaly", ANOMALY)
    events.send()
    events.send()
    assert len(records(collector)) == 1


def test_events_wait_for_the_collector_and_the_newest_are_kept(
    collector: Collector, events: EventQueue
):
    collector.answer = status(503)
    for step in range(2_500):
        events.add("anomaly", {**ANOMALY, "step": step})
    with pytest.raises(SendError):
        events.send()
    collector.answer = ok
    collector.received.clear()
    events.send()
    assert [attributes(r)["step"] for r in records(collector)] == list(range(1_500, 2_500))


def test_odd_values_are_told_too(collector: Collector, events: EventQueue):
    events.add("anomaly", {"kind": "bad \ud800", "step": 2**64, "value": math.nan})
    events.send()
    (record,) = records(collector)
    assert attributes(record)["step"] == str(2**64)
    assert math.isnan(attributes(record)["value"])


def test_the_run_is_the_resource(collector: Collector, events: EventQueue):
    events.add("anomaly", ANOMALY)
    events.send()
    (resource,) = (r.resource for r in collector.logs[0].message.resource_logs)
    assert attributes(resource)["service.instance.id"] == "llama/0"
    assert collector.logs[0].path == "/v1/logs"

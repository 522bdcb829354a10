"""Anomalies and restarts as OpenTelemetry log events."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs, SeverityNumber
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage
from opentelemetry.sdk.resources import Resource

from health_exporter.export.otlp_http import HttpClient

_MAX_WAITING = 1_000
"""Events kept while the collector is away: the newest, as the receipt has them all."""

_NAMES = {"anomaly": "training.health.anomaly", "restart": "training.health.restart"}

_ATTRIBUTES = ("kind", "step", "value", "baseline", "z_score", "rank", "last_step", "lost_steps")


class EventQueue:
    """Events that wait for the next push.

    The messages are made here and not by the SDK's logs, whose classes have not settled; what they
    say on the wire has.

    Args:
        client: Posts to the collector's logs.
        resource: Who pushes.
        run: Name of the run.
        version: Version of this package.
        wall: Unix time in seconds.
    """

    def __init__(
        self,
        client: HttpClient,
        resource: Resource,
        run: str,
        *,
        version: str,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._resource = ResourceMessage(
            attributes=[_pair(name, value) for name, value in resource.attributes.items()]
        )
        self._scope = InstrumentationScope(name="health_exporter", version=version)
        self._run = run
        self._wall = wall
        self._waiting: deque[tuple[float, str, Mapping[str, Any]]] = deque(maxlen=_MAX_WAITING)

    def add(self, event: str, fields: Mapping[str, Any]) -> None:
        """Keep an event, if it is an anomaly or a restart; the message is made by `send`."""
        if event in _NAMES:
            self._waiting.append((self._wall(), event, fields))

    def send(self) -> None:
        """Deliver what waits; it waits on where that fails.

        Raises:
            SendError: It was not taken.
        """
        waiting = list(self._waiting)
        if not waiting:
            return
        records = [self._record(*item) for item in waiting]
        self._client.post(
            ExportLogsServiceRequest(
                resource_logs=[
                    ResourceLogs(
                        resource=self._resource,
                        scope_logs=[ScopeLogs(scope=self._scope, log_records=records)],
                    )
                ]
            )
        )
        for item in waiting:
            # Where it was full, the oldest may have gone by itself.
            if self._waiting and self._waiting[0] is item:
                self._waiting.popleft()

    def _record(self, at: float, event: str, fields: Mapping[str, Any]) -> LogRecord:
        known = {name: fields[name] for name in _ATTRIBUTES if fields.get(name) is not None}
        # The name as an attribute, too: older collectors know no name of an event.
        attributes = {"event.name": _NAMES[event], "run": self._run, **known}
        record = LogRecord(
            time_unix_nano=int(at * 1e9),
            severity_number=(
                SeverityNumber.SEVERITY_NUMBER_WARN
                if event == "anomaly"
                else SeverityNumber.SEVERITY_NUMBER_INFO
            ),
            body=_any(fields.get("kind", event)),
            attributes=[_pair(name, value) for name, value in attributes.items()],
        )
        if "event_name" in LogRecord.DESCRIPTOR.fields_by_name:
            record.event_name = _NAMES[event]
        return record


def _pair(name: str, value: object) -> KeyValue:
    return KeyValue(key=name, value=_any(value))


def _any(value: object) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(string_value=str(value).encode("utf-8", "replace").decode())

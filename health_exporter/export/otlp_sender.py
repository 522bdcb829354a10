"""Delivers pushes, over HTTP or gRPC."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Mapping
from typing import Protocol

from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import DataPointFlags
from opentelemetry.sdk.metrics.export import MetricExportResult

from health_exporter.export.otlp import Message
from health_exporter.export.otlp_http import HttpClient, SendError, variable


class Sender(Protocol):
    """Delivers metrics."""

    def send(self, push: Message) -> None:
        """Deliver, or raise `SendError`."""


def make_sender(environ: Mapping[str, str], timeout_s: float | None = None) -> Sender:
    """The sender that the standard environment variables ask for.

    Args:
        environ: Environment variables.
        timeout_s: Time for one push; None: from the environment.

    Raises:
        ValueError: A variable is wrong.
        ImportError: Its protocol is gRPC, whose exporter is not installed.
    """
    protocol = variable(environ, "METRICS", "PROTOCOL") or "http/protobuf"
    if protocol == "grpc":
        return GrpcSender(timeout_s)
    if protocol != "http/protobuf":
        raise ValueError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf or grpc, got {protocol!r}"
        )
    return HttpSender(HttpClient(environ, "metrics", timeout_s))


class HttpSender:
    """OTLP over HTTP."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def send(self, push: Message) -> None:
        """Deliver, or raise `SendError`."""
        content = self._client.post(encode(push))
        try:
            partial = ExportMetricsServiceResponse.FromString(content).partial_success
        except DecodeError as error:
            raise SendError(f"the answer is no OTLP: {error}") from error
        if partial.rejected_data_points:
            raise SendError(
                f"{partial.rejected_data_points} points were refused: {partial.error_message}"
            )


class GrpcSender:
    """OTLP over gRPC, by the SDK's exporter, which cannot tell of series that are gone.

    Raises:
        ImportError: It is not installed.
        ValueError: It does not take what the environment says.
    """

    def __init__(self, timeout_s: float | None = None) -> None:
        module = importlib.import_module("opentelemetry.exporter.otlp.proto.grpc.metric_exporter")
        more = {} if timeout_s is None else {"timeout": timeout_s}
        self._exporter = module.OTLPMetricExporter(**more)
        self._said = _Overheard()
        logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter").addFilter(self._said)

    def send(self, push: Message) -> None:
        """Deliver, or raise `SendError`."""
        with self._said:
            result = self._exporter.export(push.data)
        if result is not MetricExportResult.SUCCESS:
            raise SendError(self._said.last or "the exporter does not say why")


class _Overheard(logging.Filter):
    """Keeps what a library logs in our own thread to itself: it is told once a minute, not each
    time; other threads' lines, those of the trainer's own exporters, pass."""

    def __init__(self) -> None:
        super().__init__()
        self.last = ""
        self._thread: int | None = None

    def __enter__(self) -> None:
        self.last = ""
        self._thread = threading.get_ident()

    def __exit__(self, *error: object) -> None:
        self._thread = None

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread is None or record.thread != self._thread:
            return True
        self.last = record.getMessage()
        return False


def encode(push: Message) -> ExportMetricsServiceRequest:
    """The message on the wire: that of the SDK's classes, and what they have no place for."""
    request = encode_metrics(push.data)
    metrics = request.resource_metrics[0].scope_metrics[0].metrics
    for gone in push.gone:
        # Each by itself: the collector's Prometheus exporter leaves out what follows a point that
        # has no value in a metric.
        point = metrics.add(name=gone.name, unit=gone.unit).gauge.data_points.add(
            time_unix_nano=push.time_unix_nano,
            flags=DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK,
        )
        for name, value in gone.attributes:
            point.attributes.add(key=name).value.string_value = value
    return request

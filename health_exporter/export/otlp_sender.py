"""Sends a push to a collector, once.

OTLP over HTTP is sent from here and not by the SDK's exporter, which (as of 1.45) sleeps between
its retries up to a minute while newer values are waiting, draws from the trainer's global random
numbers at every export, takes a redirection for success, and reads answers of any length. A push
that failed is not repeated: the next one carries everything, as all values are cumulative.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import logging
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import Protocol
from urllib.parse import unquote, urlsplit

import requests
from google.protobuf.message import DecodeError, Message
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData

import health_exporter

_DEFAULT_TIMEOUT_S = 10.0
"""The standard's."""

_MAX_ANSWER = 4096
"""Bytes read of an answer: a partial success with its message; the rest is not for us."""

_MAX_REASON = 200
"""Characters of a collector's own words that are logged."""

_ENCODINGS: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
}


class SendError(Exception):
    """A push did not arrive.

    Args:
        reason: Why.
        retry_after_s: When the collector wants to hear of us again; None: it did not say.
    """

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason[:_MAX_REASON])
        self.retry_after_s = retry_after_s


class Sender(Protocol):
    """Delivers metrics."""

    def send(self, data: MetricsData) -> None:
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
    protocol = _variable(environ, "METRICS", "PROTOCOL") or "http/protobuf"
    if protocol == "grpc":
        return GrpcSender(timeout_s)
    if protocol != "http/protobuf":
        raise ValueError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf or grpc, got {protocol!r}"
        )
    return HttpSender(HttpClient(environ, "metrics", timeout_s))


class HttpClient:
    """Posts messages to one address.

    Args:
        environ: Environment variables.
        signal: `metrics` or `logs`.
        timeout_s: Time for one message; None: from the environment.

    Raises:
        ValueError: A variable is wrong.
    """

    def __init__(
        self, environ: Mapping[str, str], signal: str, timeout_s: float | None = None
    ) -> None:
        def variable(name: str) -> str:
            return _variable(environ, signal.upper(), name)

        own = environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "").strip()
        base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip() or "http://localhost:4318"
        self.url = own or f"{base.rstrip('/')}/v1/{signal}"
        address = urlsplit(self.url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ValueError(f"the OTLP endpoint must be an http(s) URL, got {self.shown!r}")
        self._timeout_s = timeout_s or _timeout(variable("TIMEOUT"))
        encoding = variable("COMPRESSION").lower()
        if encoding not in ("", "none", *_ENCODINGS):
            raise ValueError(
                f"OTEL_EXPORTER_OTLP_COMPRESSION must be none, gzip or deflate, got {encoding!r}"
            )
        self._compress = _ENCODINGS.get(encoding)
        self._headers = {
            # One connection a push: at several seconds between two, an idle connection for each of
            # thousands of ranks costs the collector more than it saves, and none is inherited by
            # the trainer's children.
            "Connection": "close",
            "User-Agent": f"health-exporter/{health_exporter.__version__}",
            **_headers(variable("HEADERS")),
            "Content-Type": "application/x-protobuf",
            **({} if self._compress is None else {"Content-Encoding": encoding}),
        }
        self._verify: str | bool = variable("CERTIFICATE") or True
        certificate, key = variable("CLIENT_CERTIFICATE"), variable("CLIENT_KEY")
        self._certificate = (certificate, key) if certificate and key else certificate or None

    @property
    def shown(self) -> str:
        """The address without what may be secret."""
        address = urlsplit(self.url)
        return address._replace(netloc=address.netloc.rpartition("@")[2], query="").geturl()

    def post(self, message: Message) -> bytes:
        """Send a message.

        Returns:
            The beginning of the answer; empty where it is no message.

        Raises:
            SendError: It was not taken.
        """
        body = message.SerializeToString()
        if self._compress is not None:
            body = self._compress(body)
        deadline = time.monotonic() + self._timeout_s
        try:
            with requests.Session() as session:
                answer = session.post(
                    self.url,
                    data=body,
                    headers=self._headers,
                    timeout=self._timeout_s,
                    verify=self._verify,
                    cert=self._certificate,
                    stream=True,
                    allow_redirects=False,
                )
                content = _beginning(answer, deadline)
        except (requests.RequestException, OSError, ValueError) as error:
            raise SendError(f"{type(error).__name__}: {error}") from error
        if not 200 <= answer.status_code < 300:
            reason = f"HTTP {answer.status_code} {answer.reason or ''}".strip()
            raise SendError(reason, _retry_after(answer.headers.get("Retry-After", "")))
        kind = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind == "text/html":
            raise SendError(f"HTTP {answer.status_code} with a web page: no OTLP receiver")
        return content if kind == "application/x-protobuf" else b""


class HttpSender:
    """OTLP over HTTP."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def send(self, data: MetricsData) -> None:
        """Deliver, or raise `SendError`."""
        content = self._client.post(encode_metrics(data))
        try:
            partial = ExportMetricsServiceResponse.FromString(content).partial_success
        except DecodeError as error:
            raise SendError(f"the answer is no OTLP: {error}") from error
        if partial.rejected_data_points:
            raise SendError(
                f"{partial.rejected_data_points} points were refused: {partial.error_message}"
            )


class GrpcSender:
    """OTLP over gRPC, by the SDK's exporter.

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

    def send(self, data: MetricsData) -> None:
        """Deliver, or raise `SendError`."""
        with self._said:
            result = self._exporter.export(data)
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


def _variable(environ: Mapping[str, str], signal: str, name: str) -> str:
    """The signal's own variable, else the one for all signals."""
    own = environ.get(f"OTEL_EXPORTER_OTLP_{signal}_{name}", "").strip()
    return own or environ.get(f"OTEL_EXPORTER_OTLP_{name}", "").strip()


def _timeout(text: str) -> float:
    """Seconds, as the Python SDK reads them, or milliseconds, as the specification has them: no
    collector is waited for longer than two minutes, and none for less than a tenth of a second."""
    if not text:
        return _DEFAULT_TIMEOUT_S
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"OTEL_EXPORTER_OTLP_TIMEOUT must be a number > 0, got {text!r}")
    return value if value <= 120 else value / 1000


def _headers(text: str) -> dict[str, str]:
    headers = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = item.partition("=")
        if not separator or not name.strip():
            # Without the text, which may hold a token.
            raise ValueError("OTEL_EXPORTER_OTLP_HEADERS must be name=value pairs and commas")
        headers[unquote(name.strip())] = unquote(value.strip())
    return headers


def _beginning(answer: requests.Response, deadline: float) -> bytes:
    """At most `_MAX_ANSWER` bytes; one at a time, so that one that comes in drops is left, too."""
    content = bytearray()
    for byte in answer.iter_content(1):
        content += byte
        if len(content) >= _MAX_ANSWER or time.monotonic() > deadline:
            break
    return bytes(content)


def _retry_after(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        return max(0.0, float(text))
    with contextlib.suppress(ValueError, TypeError):
        moment = parsedate_to_datetime(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=timezone.utc)
        return max(0.0, moment.timestamp() - time.time())
    return None

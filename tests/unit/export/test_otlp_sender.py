"""One push over HTTP: what is sent, and what is made of the answers."""

from __future__ import annotations

import random
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceResponse,
)

from health_exporter.export.otlp import Message, MessageMaker, make_resource
from health_exporter.export.otlp_http import HttpClient, SendError
from health_exporter.export.otlp_sender import make_sender
from tests.unit.export.otlp_collector import (
    Answer,
    Collector,
    Hanging,
    endless,
    rubbish,
    status,
)
from tests.unit.export.otlp_sample import full_snapshot

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def data() -> Message:
    snapshot = full_snapshot()
    return MessageMaker(lambda: snapshot, make_resource("r", 0, "h", "1.2"), version="1.2").make()


def test_base_endpoint_gets_the_path(collector: Collector, data: Message):
    make_sender({ENDPOINT: collector.url + "/otlp/"}).send(data)
    assert [one.path for one in collector.received] == ["/otlp/v1/metrics"]


def test_endpoint_for_metrics_is_taken_as_it_is(collector: Collector, data: Message):
    own = f"{collector.url}/api/v1/otlp/v1/metrics"
    environ = {ENDPOINT: "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": own}
    make_sender(environ).send(data)
    assert [one.path for one in collector.received] == ["/api/v1/otlp/v1/metrics"]


def test_default_endpoint_is_the_standard_one():
    assert HttpClient({}, "metrics").url == "http://localhost:4318/v1/metrics"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_body_is_compressed_where_asked_for(collector: Collector, data: Message, encoding: str):
    make_sender({ENDPOINT: collector.url, "OTEL_EXPORTER_OTLP_COMPRESSION": encoding}).send(data)
    (one,) = collector.received
    assert one.headers["content-encoding"] == encoding
    assert one.message.resource_metrics


def test_headers_are_sent(collector: Collector, data: Message):
    environ = {
        ENDPOINT: collector.url,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-general=no",
        "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "authorization=Bearer%20s3cret, x-scope-orgid=1",
    }
    make_sender(environ).send(data)
    (one,) = collector.received
    assert one.headers["authorization"] == "Bearer s3cret"
    assert one.headers["x-scope-orgid"] == "1"
    assert "x-general" not in one.headers
    assert one.headers["content-type"] == "application/x-protobuf"


FAULTS: dict[str, tuple[Answer, str]] = {
    "out of order": (status(503), "HTTP 503"),
    "refused": (status(400), "HTTP 400"),
    "elsewhere": (status(302, Location="/login"), "HTTP 302"),
    "rubbish": (rubbish, "ConnectionError"),
    "a web page": (status(200, b"<html>", Content_Type="text/html; charset=utf-8"), "web page"),
    "no OTLP": (status(200, b"\xff" * 40), "no OTLP"),
    "endless": (endless, "no OTLP"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_was_not_taken_is_an_error(collector: Collector, data: Message, fault: str):
    collector.answer, reason = FAULTS[fault]
    with pytest.raises(SendError, match=reason):
        make_sender({ENDPOINT: collector.url}).send(data)
    assert len(collector.received) == 1, "a push is not repeated"


def test_points_that_were_refused_are_an_error(collector: Collector, data: Message):
    partial = ExportMetricsPartialSuccess(rejected_data_points=7, error_message="out of order")
    answer = ExportMetricsServiceResponse(partial_success=partial).SerializeToString()
    collector.answer = status(200, answer)
    with pytest.raises(SendError, match=r"7 points were refused: out of order"):
        make_sender({ENDPOINT: collector.url}).send(data)


@pytest.mark.parametrize("code", [429, 503])
def test_collector_says_when_to_come_back(collector: Collector, data: Message, code: int):
    sender = make_sender({ENDPOINT: collector.url})
    collector.answer = status(code, Retry_After="17")
    with pytest.raises(SendError) as caught:
        sender.send(data)
    assert caught.value.retry_after_s == 17.0
    collector.answer = status(code, Retry_After=formatdate(time.time() + 60, usegmt=True))
    with pytest.raises(SendError) as caught:
        sender.send(data)
    assert 50.0 < (caught.value.retry_after_s or 0.0) <= 60.0
    collector.answer = status(code, Retry_After="soon")
    with pytest.raises(SendError) as caught:
        sender.send(data)
    assert caught.value.retry_after_s is None


@pytest.mark.parametrize("timeout", ["0.2", "200"])
def test_slow_collector_is_not_waited_for(collector: Collector, data: Message, timeout: str):
    hanging = Hanging()
    collector.answer = hanging
    # Seconds, as the SDK has it, or milliseconds, as the specification has it.
    sender = make_sender({ENDPOINT: collector.url, "OTEL_EXPORTER_OTLP_TIMEOUT": timeout})
    began = time.monotonic()
    with pytest.raises(SendError, match="ReadTimeout"):
        sender.send(data)
    assert time.monotonic() - began < 5.0
    hanging.go_on.set()


def test_nobody_listens(data: Message):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]
        with pytest.raises(SendError, match="ConnectionError"):
            make_sender({ENDPOINT: f"http://127.0.0.1:{port}"}).send(data)


def test_trainers_random_numbers_are_left_alone(collector: Collector, data: Message):
    before = random.getstate()
    make_sender({ENDPOINT: collector.url}).send(data)
    collector.answer = status(503)
    with pytest.raises(SendError):
        make_sender({ENDPOINT: collector.url}).send(data)
    assert random.getstate() == before


def test_no_secret_is_shown():
    client = HttpClient(
        {ENDPOINT: "https://user:s3cret@otlp.example:4318/x?token=s3cret"}, "metrics"
    )
    assert client.shown == "https://otlp.example:4318/x"
    with pytest.raises(ValueError, match="HEADERS") as caught:
        HttpClient({"OTEL_EXPORTER_OTLP_HEADERS": "s3cret"}, "metrics")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ENDPOINT", "collector:4318"),
        ("ENDPOINT", "ftp://collector"),
        ("ENDPOINT", "http://"),
        ("COMPRESSION", "zstd"),
        ("TIMEOUT", "soon"),
        ("TIMEOUT", "-1"),
        ("TIMEOUT", "nan"),
        ("PROTOCOL", "http/json"),
    ],
)
def test_wrong_variable_is_an_error(name: str, text: str):
    with pytest.raises(ValueError, match=r"OTLP"):
        make_sender({f"OTEL_EXPORTER_OTLP_{name}": text})


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", folder / "key.pem", "-out", folder / "cert.pem"),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return folder


def test_certificates_are_those_of_the_environment(certificate: Path, data: Message):
    cert, key = str(certificate / "cert.pem"), str(certificate / "key.pem")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    tls.load_verify_locations(cert)
    tls.verify_mode = ssl.CERT_REQUIRED
    client = {
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": cert,
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": key,
    }
    with Collector(tls=tls) as collector:
        environ = {ENDPOINT: collector.url, "OTEL_EXPORTER_OTLP_CERTIFICATE": cert, **client}
        make_sender(environ).send(data)
        assert len(collector.received) == 1
        with pytest.raises(SendError, match="SSLError"):  # an unknown authority
            make_sender({ENDPOINT: collector.url, **client}).send(data)


def test_certificate_that_is_not_there_is_an_error_of_the_push(data: Message):
    environ = {ENDPOINT: "https://127.0.0.1:1", "OTEL_EXPORTER_OTLP_CERTIFICATE": "/missing.pem"}
    with pytest.raises(SendError, match=r"missing\.pem"):
        make_sender(environ).send(data)


def test_grpc_without_its_exporter_is_an_import_error(monkeypatch: pytest.MonkeyPatch):
    missing = "opentelemetry.exporter.otlp.proto.grpc.metric_exporter"
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError):
        make_sender({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})

"""A collector that decodes real OTLP, and can be made to fail in the ways that collectors do."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from tests.unit.export.otlp_translation import Series, translated

DEADLINE_S = 30.0

_DECODE: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
}


class Received(NamedTuple):
    """One push."""

    path: str
    headers: dict[str, str]
    message: Any
    at: float
    """Monotonic."""


Handler = http.server.BaseHTTPRequestHandler
Answer = Callable[[Handler], None]


def ok(handler: Handler) -> None:
    """As the collector answers."""
    status()(handler)


def status(code: int = 200, body: bytes = b"", **headers: str) -> Answer:
    """Answers with a status, headers (underscores are dashes) and a body."""

    def answer(handler: Handler) -> None:
        handler.send_response(code)
        for name, value in {"Content_Type": "application/x-protobuf", **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def rubbish(handler: Handler) -> None:
    """Answers in no language."""
    handler.wfile.write(b"\x00\xffwhat?\r\n\r\n")


def endless(handler: Handler) -> None:
    """Goes on answering until nobody listens."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/x-protobuf")
    handler.end_headers()
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b"\x00" * 65536)


class Hanging:
    """Takes the push and does not answer until it is let go."""

    def __init__(self) -> None:
        self.taken = threading.Semaphore(0)
        self.go_on = threading.Event()

    def __call__(self, handler: Handler) -> None:
        self.taken.release()
        self.go_on.wait(DEADLINE_S)
        with contextlib.suppress(OSError):
            ok(handler)


class Collector:
    """Listens on a loopback port until it is stopped.

    Args:
        port: Port; 0: any free one.
    """

    def __init__(self, port: int = 0, *, tls: Any = None) -> None:
        collector = self
        self.answer: Answer = ok
        self.received: list[Received] = []
        self._came = threading.Condition()

        class Handle(Handler):
            def do_POST(self) -> None:  # noqa: N802  # the library's name
                collector._take(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Quiet(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a client that has gone

        self._server = Quiet(("127.0.0.1", port), Handle)
        scheme = "http"
        if tls is not None:
            scheme = "https"
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Listen no more: connections are refused from now on."""
        self._server.shutdown()
        self._server.server_close()

    def _take(self, handler: Handler) -> None:
        headers = {name.lower(): value for name, value in handler.headers.items()}
        body = handler.rfile.read(int(headers["content-length"]))
        body = _DECODE[headers.get("content-encoding", "")](body)
        is_logs = handler.path.endswith("/logs")
        kind = ExportLogsServiceRequest if is_logs else ExportMetricsServiceRequest
        message = kind.FromString(body)
        answer = self.answer
        with self._came:
            self.received.append(Received(handler.path, headers, message, time.monotonic()))
            self._came.notify_all()
        answer(handler)

    @property
    def metrics(self) -> list[Received]:
        """The pushes of metrics."""
        return [one for one in list(self.received) if not one.path.endswith("/logs")]

    @property
    def logs(self) -> list[Received]:
        """The pushes of log events."""
        return [one for one in list(self.received) if one.path.endswith("/logs")]

    @property
    def newest(self) -> dict[Series, float]:
        """Series of the newest push of metrics."""
        return translated(self.metrics[-1].message)

    def wait(self, is_enough: Callable[[Collector], bool], deadline_s: float = DEADLINE_S) -> None:
        """Until something has come and is enough; AssertionError after the deadline."""
        with self._came:
            came = self._came.wait_for(lambda: bool(self.metrics) and is_enough(self), deadline_s)
            assert came, "it has not come"


def value(series: dict[Series, float], name: str, **labels: str) -> float:
    """The value of the one series that has these labels, and maybe more."""
    (found,) = (v for (n, ls), v in series.items() if n == name and set(labels.items()) <= ls)
    return found

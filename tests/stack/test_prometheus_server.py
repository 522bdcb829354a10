from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from tests.stack.conftest import StartPrometheus


class _OneMetric(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(b"answer 42\n")

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


def test_a_started_prometheus_scrapes_the_target_it_was_given(prometheus: StartPrometheus) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _OneMetric) as target:
        Thread(target=target.serve_forever, daemon=True).start()
        server = prometheus(targets=[f"127.0.0.1:{target.server_port}"])

        [(labels, value)] = server.wait_until("answer == 42")
        target.shutdown()

    assert value == 42
    assert labels["job"] == "trainer"

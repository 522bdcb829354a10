"""The push to a real VictoriaMetrics, series by series beside the scrape.

Debian 13 and later have one that takes OTLP.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from health_exporter import HealthExporter
from tests.stack.test_otlp import scrape
from tests.stack.trainer_script import poll

NAME = "victoria-metrics"
FLAG = "-opentelemetry.usePrometheusNaming"

# What it makes labels of, beside those of the points: the resource and the scope.
OF_THE_PUSHER = {
    *("job", "instance", "service_name", "service_namespace", "service_version", "host_name"),
    *("service_instance_id", "scope_name", "scope_version"),
    *("otel_scope_name", "otel_scope_version"),
}


@functools.cache
def takes_otlp() -> bool:
    if shutil.which(NAME) is None:
        return False
    shown = subprocess.run([NAME, "-help"], capture_output=True, text=True, timeout=30, check=False)
    return FLAG in shown.stdout + shown.stderr


pytestmark = pytest.mark.skipif(not takes_otlp(), reason=f"no {NAME} on PATH that takes OTLP")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    server = subprocess.Popen(
        [NAME, FLAG, f"-storageDataPath={tmp_path / 'vm'}", f"-httpListenAddr={address}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        poll(lambda: is_up(f"http://{address}/health"))
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait(30)


def is_up(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
        return True
    return False


def stored(url: str) -> dict[str, set[frozenset[tuple[str, str]]]]:
    """Names to label sets, without the labels of the pusher."""
    selector = '{__name__=~"training_health_.*"}'
    query = urllib.parse.urlencode({"match[]": selector})
    with urllib.request.urlopen(f"{url}/api/v1/export?{query}", timeout=20) as answer:
        rows = [json.loads(line)["metric"] for line in answer.read().splitlines()]
    found: dict[str, set[frozenset[tuple[str, str]]]] = {}
    for row in rows:
        name = row.pop("__name__")
        labels = frozenset((n, v) for n, v in row.items() if n not in OF_THE_PUSHER)
        found.setdefault(name, set()).add(labels)
    return found


def test_series_are_those_of_the_scrape(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"{url}/opentelemetry")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    with HealthExporter(
        run="r", port=0, address="127.0.0.1", receipt_dir=tmp_path / "receipts", linger_s=0
    ) as exporter:
        for step in range(60):
            exporter.observe_step(step, 2.0 + step % 3, grad_norm=1.0)
        assert exporter.port is not None
        by_scrape: dict[str, set[frozenset[tuple[str, str]]]] = {}
        for name, labels in scrape(exporter.port):
            if name.startswith("training_health_"):
                by_scrape.setdefault(name, set()).add(labels)
        poll(lambda: by_scrape.items() <= stored(url).items())

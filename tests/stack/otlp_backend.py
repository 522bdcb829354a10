"""Real servers that take OTLP, started with the settings that the README names for them."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prometheus_client.utils import floatToGoString

from health_exporter.demo.stack import Server
from tests.stack.trainer_script import poll
from tests.unit.export.otlp_translation import Series

VARIABLE = "HEALTH_EXPORTER_NEWER_SERVERS"
# Read when tests are collected: while they run, no setting of the machine is in the environment.
_NEWER = os.path.abspath(folder) if (folder := os.environ.get(VARIABLE, "")) else ""

RECEIVER = "--web.enable-otlp-receiver"
REMOTE_WRITE = "--web.enable-remote-write-receiver"
NAMING = "-opentelemetry.usePrometheusNaming"
FEWER_LABELS = (
    "-opentelemetry.promoteScopeMetadata=false",
    "-opentelemetry.promoteAllResourceAttributes=false",
    "-opentelemetry.promoteResourceAttributes=service.instance.id",
)
TRANSLATION = {"translation_strategy": "UnderscoreEscapingWithSuffixes"}

# What an older VictoriaMetrics, such as Debian 13's 1.112, makes labels of whatever one says.
_RESOURCE = ("service_name", "service_namespace", "service_version", "host_name")

_OURS = '{__name__=~"training_health_.+|process_.+|python_info"}'


class Backend(NamedTuple):
    """One that runs."""

    endpoint: str
    """For `OTEL_EXPORTER_OTLP_ENDPOINT`."""
    url: str
    """Of the server that is asked."""
    instance: str
    """Name of the label that tells who has pushed."""
    added: frozenset[str]
    """Names of all labels that a pushed series has more than a scraped one."""
    keeps_nan: bool = True
    rel_tol: float = 0.0
    """How far from what was pushed the values are that it shows."""
    flush: str = ""
    """Path by which it is told to show what it has taken; else that takes it seconds."""

    def environ(self, interval_ms: int = 100) -> dict[str, str]:
        """What makes a trainer push to it."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint,
            "OTEL_METRIC_EXPORT_INTERVAL": str(interval_ms),
        }

    def shown(self, instance: str) -> dict[Series, float]:
        """The series and values of one pusher that it shows now, without the labels it adds."""
        if self.flush:
            urllib.request.urlopen(self.url + self.flush, timeout=20).close()
        query = urllib.parse.urlencode({"query": _OURS})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=20) as answer:
            found = json.load(answer)["data"]["result"]
        series: dict[Series, float] = {}
        for one in found:
            labels = one["metric"]
            if labels.pop(self.instance) != instance:
                continue
            for name in self.added - {self.instance}:
                del labels[name]
            series[labels.pop("__name__"), frozenset(labels.items())] = float(one["value"][1])
        return {as_number(one): value for one, value in series.items()}


def as_number(series: Series) -> Series:
    """With `le` as a scrape by Prometheus 3 stores it: 1.0 and 1 are one number, of which some
    servers write one and some the other."""
    name, labels = series
    return name, frozenset(
        (label, floatToGoString(float(value)) if label == "le" else value)
        for label, value in labels
    )


def difference(
    scraped: Mapping[Series, float], stored: Mapping[Series, float], rel_tol: float = 0.0
) -> str:
    """One line for each series that is not the same on both ways; empty when all are."""
    lines = []
    for one in sorted(scraped.keys() | stored.keys(), key=_text):
        if one not in stored:
            lines.append(f"scraped only: {_text(one)} {scraped[one]}")
        elif one not in scraped:
            lines.append(f"stored only:  {_text(one)} {stored[one]}")
        elif not _is_same(scraped[one], stored[one], rel_tol):
            lines.append(f"differs:      {_text(one)} {scraped[one]} scraped, {stored[one]} stored")
    return "\n".join(lines)


def _text(series: Series) -> str:
    pairs = ", ".join(f'{name}="{value}"' for name, value in sorted(series[1]))
    return f"{series[0]}{{{pairs}}}"


def _is_same(a: float, b: float, rel_tol: float) -> bool:
    return math.isclose(a, b, rel_tol=rel_tol) or (math.isnan(a) and math.isnan(b))


@contextlib.contextmanager
def victoria_metrics(folder: Path) -> Iterator[Backend]:
    """VictoriaMetrics, which takes OTLP itself."""
    program = find("victoria-metrics", NAMING)
    fewer = FEWER_LABELS[0].partition("=")[0] in _help(program)
    flags = [NAMING, *(FEWER_LABELS if fewer else ())]
    # It would answer as of half a minute ago.
    flags += [f"-storageDataPath={folder / 'vm'}", "-search.latencyOffset=0s"]
    with _victoria(program, folder, flags) as url:
        added = frozenset(("service_instance_id", *(() if fewer else _RESOURCE)))
        # Its blocks hold decimal fractions, of 13 digits or more, and no NaN.
        yield Backend(
            f"{url}/opentelemetry",
            url,
            "service_instance_id",
            added,
            keeps_nan=False,
            rel_tol=1e-12,
            flush="/internal/force_flush",
        )


@contextlib.contextmanager
def prometheus(folder: Path) -> Iterator[Backend]:
    """Prometheus' own receiver."""
    with _prometheus(find("prometheus", RECEIVER), folder, RECEIVER, {"otlp": TRANSLATION}) as url:
        added = frozenset(("job", "instance"))
        yield Backend(f"{url}/api/v1/otlp", url, "instance", added)


@contextlib.contextmanager
def through_vmagent(folder: Path) -> Iterator[Backend]:
    """Any Prometheus, by remote write from VictoriaMetrics' agent, which takes OTLP for it."""
    program = find("prometheus", REMOTE_WRITE)
    with (
        _prometheus(program, folder, REMOTE_WRITE, {}) as url,
        vmagent(folder, url) as endpoint,
    ):
        added = frozenset(("service_instance_id",))
        yield Backend(endpoint, url, "service_instance_id", added)


@contextlib.contextmanager
def vmagent(folder: Path, prometheus_url: str) -> Iterator[str]:
    """The agent that writes to a Prometheus; what to push to."""
    program = find("vmagent", FEWER_LABELS[0].partition("=")[0])
    flags = [NAMING, *FEWER_LABELS, f"-remoteWrite.url={prometheus_url}/api/v1/write"]
    flags += [f"-remoteWrite.tmpDataPath={folder / 'vmagent'}"]
    with _victoria(program, folder, flags) as url:
        yield f"{url}/opentelemetry"


BACKENDS = (victoria_metrics, prometheus, through_vmagent)


def find(name: str, flag: str) -> str:
    """The path of the first server of this name, newer ones before those on PATH, that knows the
    flag; the test is skipped without one."""
    for folder in (_NEWER, *os.environ["PATH"].split(os.pathsep)):
        path = shutil.which(name, path=folder) if folder else None
        if path is not None and flag.lstrip("-") in _help(path).replace("[no-]", ""):
            return path
    why = "; Debian builds it without" if flag == RECEIVER else ""
    pytest.skip(f"no {name} with {flag} on PATH or in {VARIABLE}{why}")


@functools.cache
def _help(path: str) -> str:
    done = subprocess.run([path, "--help"], capture_output=True, text=True, timeout=30, check=False)
    return done.stdout + done.stderr


@contextlib.contextmanager
def _prometheus(program: str, folder: Path, flag: str, config: Mapping[str, Any]) -> Iterator[str]:
    (folder / "prometheus.yml").write_text(json.dumps(config))
    command = [program, "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    server = Server([*command, "--web.listen-address=127.0.0.1:0", flag], folder, "prometheus")
    try:
        yield server.url
    finally:
        server.stop()


@contextlib.contextmanager
def _victoria(program: str, folder: Path, flags: list[str]) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    log_path = folder / f"{Path(program).name}.log"
    with log_path.open("wb") as log:
        server = subprocess.Popen(
            [program, *flags, f"-httpListenAddr={address}"], stdout=log, stderr=log
        )
    try:
        poll(lambda: _is_up(f"http://{address}/health", server, log_path))
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait(30)


def _is_up(url: str, server: subprocess.Popen[bytes], log_path: Path) -> bool:
    assert server.poll() is None, log_path.read_text()[-2000:]
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
        return True
    return False

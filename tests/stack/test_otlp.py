"""The push of real trainers to a collector that works, breaks, hangs and comes back."""

from __future__ import annotations

import itertools
import signal
import socket
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from health_exporter import HealthExporter
from tests.stack.trainer_script import Script, StartScript, poll
from tests.unit.export.otlp_collector import Collector, Hanging, status, value
from tests.unit.export.otlp_translation import Series, translated
from tests.unit.export.raw_http import exchange, get

TERM = signal.SIGTERM


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


def environ(url: str, interval_ms: int = 50) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "OTEL_METRIC_EXPORT_INTERVAL": str(interval_ms),
    }


def states(collector: Collector, name: str = "training_health_rank_state") -> set[str]:
    """The states that the newest push says the rank is in."""
    return {dict(labels)["state"] for (n, labels), v in collector.newest.items() if n == name and v}


def train(exporter: HealthExporter) -> None:
    """Steps, a phase and an anomaly, so that each kind of metric has a value."""
    with exporter.phase("eval"):
        pass
    for step in range(40):
        exporter.observe_step(step, 2.0 + step % 3, grad_norm=1.0, step_time_s=0.1 + step / 7)
    exporter.observe_step(40, 900.0, grad_norm=1.0, step_time_s=0.2)


def scrape(port: int) -> dict[Series, float]:
    body = exchange(port, get("/metrics")).body
    return {
        (sample.name, frozenset((n, v) for n, v in sample.labels.items() if v)): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def test_live_push_has_the_series_and_values_of_the_scrape(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, text in environ(collector.url).items():
        monkeypatch.setenv(name, text)
    moving = ("process_", "training_health_goodput", "training_health_receipt_time")

    def settled(series: dict[Series, float]) -> dict[Series, float]:
        return {s: 0.0 if s[0].startswith(moving) else v for s, v in series.items()}

    with HealthExporter(
        run="r", port=0, address="127.0.0.1", receipt_dir=tmp_path, linger_s=0
    ) as exporter:
        train(exporter)
        assert exporter.port is not None
        port = exporter.port
        poll(lambda: bool(collector.metrics) and settled(collector.newest) == settled(scrape(port)))
        assert value(collector.newest, "training_health_anomalies_total", kind="loss_spike") == 1


ENDINGS = {
    "normal": ("", None, "finished"),
    "exception": ("    raise ValueError\n", None, "failed"),
    "SIGTERM": ("    tell('ready')\n    time.sleep(60)\n", TERM, "terminated"),
    # The main thread does not come back to the interpreter, as in a collective.
    "SIGTERM in native code": (
        "    lock, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)\n"
        "    libc.pthread_mutex_lock(lock)\n"
        "    tell('ready')\n"
        "    libc.pthread_mutex_lock(lock)\n",
        TERM,
        "terminated",
    ),
    "SIGINT": ("    tell('ready')\n    time.sleep(60)\n", signal.SIGINT, "interrupted"),
    "sys.exit, bare": ("sys.exit(3)\n", None, "finished"),
}
STEPS = "    for step in range(3):\n        exporter.observe_step(step, 2.0)\n"


def run_to_its_end(start: StartScript, ending: str, url: str) -> tuple[Script, float]:
    """Its process, and the seconds that its end took."""
    body, signum, _ = ENDINGS[ending]
    begin = "exporter = make()\nif True:\n" if "bare" in ending else "with make() as exporter:\n"
    script = start(begin + STEPS + body, environ=environ(url, interval_ms=60_000))
    if signum is not None:
        script.wait_for("ready")
        script.process.send_signal(signum)
    began = time.monotonic()
    script.end()
    return script, time.monotonic() - began


@pytest.mark.parametrize("ending", ENDINGS)
def test_last_push_says_how_it_ended(start: StartScript, collector: Collector, ending: str):
    run_to_its_end(start, ending, collector.url)
    expected = ENDINGS[ending][2]
    assert states(collector) == {expected}
    assert states(collector, "training_health_run_state") == {expected}
    assert value(collector.newest, "training_health_steps_total") == 3
    finals = [one for one in collector.metrics if has_state(one.message, expected)]
    assert len(finals) == 1, "the end is pushed once"


def has_state(message: Any, state: str) -> bool:
    series = translated(message)
    return value(series, "training_health_rank_state", state=state) == 1


@pytest.mark.parametrize("ending", ["normal", "exception", "SIGTERM", "SIGTERM in native code"])
def test_end_with_a_collector_that_is_gone(start: StartScript, ending: str):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        script, seconds = run_to_its_end(
            start, ending, f"http://127.0.0.1:{taken.getsockname()[1]}"
        )
    assert script.report()["status"] == ENDINGS[ending][2]
    assert seconds < 4.0


@pytest.mark.parametrize("ending", ["normal", "SIGTERM"])
def test_end_with_a_collector_that_hangs(start: StartScript, collector: Collector, ending: str):
    hanging = Hanging()
    collector.answer = hanging
    script, seconds = run_to_its_end(start, ending, collector.url)
    hanging.go_on.set()
    assert script.report()["status"] == ENDINGS[ending][2]
    assert seconds < 7.0
    assert states(collector) == {ENDINGS[ending][2]}  # it was taken, if not answered


def test_counters_are_right_when_a_killed_collector_is_back(start: StartScript):
    first = Collector()
    script = start(
        "exporter = make()\n"
        "for step in range(10): exporter.observe_step(step, 2.0)\n"
        "sys.stdin.readline()\n"
        "for step in range(10, 30): exporter.observe_step(step, float('nan'))\n"
        "tell('ready')\n"
        "sys.stdin.readline()\n"
        "exporter.close()\n",
        environ=environ(first.url),
    )
    failures = "training_health_rank_otlp_export_failures_total"
    first.wait(lambda c: value(c.newest, "training_health_steps_total") == 10)
    assert value(first.newest, failures) == 0
    first.stop()
    script.go_on()
    script.wait_for("ready")
    assert script.port is not None
    port = script.port
    poll(lambda: value(scrape(port), failures) >= 5)
    with Collector(first.port) as second:
        second.wait(lambda c: bool(c.metrics))
        newest = second.newest
        assert value(newest, "training_health_steps_total") == 30
        assert value(newest, "training_health_anomalies_total", kind="nan_inf_loss") == 20
        assert value(newest, failures) >= 5
        script.go_on()
        code, errors = script.end()
    assert code == 0
    assert errors.count("metrics could not be pushed") == 1, "once a minute"
    assert "opentelemetry" not in errors


def test_counters_go_on_after_kill_9(start: StartScript, collector: Collector, tmp_path: Path):
    body = (
        "exporter = make()\n"
        "for step in range({0}, {0} + 10): exporter.observe_step(step, 2.0)\n"
        "tell('ready')\n"
        "time.sleep(60)\n"
    )
    folder = tmp_path / "receipts"
    first = start(body.format(0), environ=environ(collector.url), folder=folder)
    collector.wait(
        lambda c: any(value(translated(m.message), STEPS_TOTAL) == 10 for m in c.metrics)
    )
    poll(lambda: '"n_steps": 10' in (first.record / "progress.json").read_text())
    first.process.kill()
    first.process.wait()
    before = len(collector.metrics)
    start(body.format(10), environ=environ(collector.url), folder=folder)
    collector.wait(lambda c: value(c.newest, STEPS_TOTAL) == 20)
    of_second = collector.metrics[before + 1 :]
    assert min(value(translated(m.message), STEPS_TOTAL) for m in of_second) >= 10
    assert len({start_of_steps(m.message) for m in collector.metrics}) == 1
    instances = {
        pair.value.string_value
        for one in collector.metrics
        for pair in one.message.resource_metrics[0].resource.attributes
        if pair.key == "service.instance.id"
    }
    assert instances == {"r/0"}


STEPS_TOTAL = "training_health_steps_total"


def start_of_steps(message: Any) -> int:
    metrics = message.resource_metrics[0].scope_metrics[0].metrics
    (points,) = (m.sum.data_points for m in metrics if m.name == "training.health.steps")
    return int(points[0].start_time_unix_nano)


def test_hung_trainer_does_not_look_alive(start: StartScript, collector: Collector):
    script = start(
        "exporter = make()\n"
        "for step in range(3): exporter.observe_step(step, 2.0)\n"
        "tell('ready')\n"
        "time.sleep(60)\n",
        environ=environ(collector.url),
    )
    script.wait_for("ready")
    so_far = len(collector.metrics)
    collector.wait(lambda c: len(c.metrics) >= so_far + 8)
    heartbeats = [
        value(translated(m.message), "training_health_rank_heartbeat_timestamp_seconds", rank="0")
        for m in collector.metrics[so_far + 1 :]
    ]
    assert len(set(heartbeats)) == 1, "pushes go on, and progress does not"
    assert heartbeats[0] < time.time() - 0.2


def test_nan_loss_is_not_the_last_finite_one(start: StartScript, collector: Collector):
    start(
        "exporter = make()\n"
        "for step in range(9): exporter.observe_step(step, 2.0)\n"
        "exporter.observe_step(9, float('nan'))\n"
        "time.sleep(60)\n",
        environ=environ(collector.url),
    )
    collector.wait(lambda c: value(c.newest, STEPS_TOTAL) == 10)
    loss = value(collector.newest, "training_health_loss")
    assert loss != loss
    assert value(collector.newest, "training_health_anomalies_total", kind="nan_inf_loss") == 1


def test_forked_child_pushes_nothing(start: StartScript, collector: Collector):
    script = start(
        "exporter = make()\n"
        "exporter.observe_step(0, 2.0)\n"
        "if os.fork() == 0:\n"
        "    exporter.observe_step(1, 2.0)\n"
        "    exporter.close()\n"
        "    tell('child')\n"
        "    time.sleep(60)\n"
        "time.sleep(60)\n",
        environ=environ(collector.url),
    )
    script.wait_for("child")
    so_far = len(collector.metrics)
    # The parent goes on; the first may have been on its way.
    collector.wait(lambda c: len(c.metrics) > so_far + 1)
    assert states(collector) == {"running"}
    assert value(collector.newest, "training_health_step") == 0
    script.process.kill()
    script.process.wait()
    at_the_end = len(collector.metrics)
    with pytest.raises(AssertionError, match="has not come"):  # one may have been on its way
        collector.wait(lambda c: len(c.metrics) > at_the_end + 1, deadline_s=1.0)


def test_other_ranks_push_what_they_know_of_themselves(start: StartScript, collector: Collector):
    start(
        "exporter = make(port=None, rank=3, world_size=4)\n"
        "exporter.observe_step(7, 2.0)\n"
        "time.sleep(60)\n",
        environ=environ(collector.url),
    )
    collector.wait(lambda c: any(n == "training_health_rank_step" for n, _ in c.newest))
    ours = {series for series in collector.newest if series[0].startswith("training_health_")}
    assert all(name.startswith("training_health_rank_") for name, _ in ours)
    assert all({("run", "r"), ("rank", "3")} <= labels for _, labels in ours)


def test_a_collector_that_refuses_is_left_alone_and_costs_no_memory(
    start: StartScript, collector: Collector
):
    collector.answer = status(503, Retry_After="1")
    script = start(
        "exporter = make()\nexporter.observe_step(0, 2.0)\ntell('ready')\ntime.sleep(60)\n",
        environ=environ(collector.url),
    )
    script.wait_for("ready")
    collector.wait(lambda c: len(c.metrics) >= 3)
    times = [one.at for one in collector.metrics]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert min(gaps) >= 1.0  # and not the interval of 0.05 s
    sizes = {len(one.message.SerializeToString()) for one in collector.metrics[1:]}
    assert max(sizes) - min(sizes) < 500, "each push has the state, and nothing is kept for later"


def test_anomalies_are_log_events_where_asked_for(start: StartScript, collector: Collector):
    script = start(
        "with make(otlp_events=True) as exporter:\n"
        "    for step in range(5): exporter.observe_step(step, 2.0)\n"
        "    exporter.observe_step(5, float('inf'))\n",
        environ=environ(collector.url),
    )
    script.end()
    (one,) = collector.logs
    (record,) = one.message.resource_logs[0].scope_logs[0].log_records
    # Versions before 1.36 or so have no field for it, only the attribute.
    assert getattr(record, "event_name", "training.health.anomaly") == "training.health.anomaly"
    assert record.body.string_value == "nan_inf_loss"


# The server runs beside the trainer: gRPC's own hooks on fork stay out of the tests' process.
GRPC_SERVER = """
import grpc
from concurrent import futures
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as messages
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as service

class Collector(service.MetricsServiceServicer):
    def Export(self, request, context):
        received.append(request)
        came.set()
        return messages.ExportMetricsServiceResponse()

received, came = [], threading.Event()
server = grpc.server(futures.ThreadPoolExecutor(2))
service.add_MetricsServiceServicer_to_server(Collector(), server)
os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = (
    f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
)
server.start()
"""


@pytest.mark.skipif(find_spec("grpc") is None, reason="the exporter for gRPC is not installed")
def test_push_over_grpc(start: StartScript):
    script = start(
        GRPC_SERVER
        + "exporter = make()\n"
        + "exporter.observe_step(0, 2.0)\n"
        + "came.wait(30)\n"
        + "exporter.close()\n"
        + "metrics = received[-1].resource_metrics[0].scope_metrics[0].metrics\n"
        + "tell('pushes', len(received), *sorted(metric.name for metric in metrics))\n"
        + "server.stop(0).wait()\n"
        + "again = make(run='s')\n"
        + "again.observe_step(0, 2.0)\n"
        + "again.close()\n",
        environ={"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "GRPC_VERBOSITY": "NONE"},
    )
    pushes, *names = script.wait_for("pushes").split()
    assert int(pushes) == 2
    assert "training.health.steps" in names
    code, errors = script.end()
    assert code == 0
    assert errors.count("metrics could not be pushed") == 1
    assert "StatusCode.UNAVAILABLE" in errors
    assert len(errors.splitlines()) == 1, "what the SDK's exporter says is in our line"

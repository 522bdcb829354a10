"""A real run with faults, and a real Prometheus that has the shipped rules, fifteen times as fast.

Rank 0's loss spikes and is NaN; its process is killed, and resumed without all of its state. Rank 1
is slow to load its data, and its pushes reach nobody. Rank 2 is killed. A second run is healthy.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from alerts.build import build, load_values
from tests.stack.prometheus_server import PrometheusServer
from tests.stack.trainer_script import REPOSITORY, Script, poll

RUN = "sick.run+1"  # characters that a regular expression would take otherwise
HEALTHY = "healthy"

_TRAINER = """
from health_exporter import ModelFlopConfig, TrainingHealthMonitor

def trained(**settings):
    flops = ModelFlopConfig(n_params=1_000_000, n_layer=2, n_head=2, d_model=64, seq_len=32)
    monitor = TrainingHealthMonitor.production(flop_config=flops, peak_flops_per_sec=1e10)
    return make(monitor=monitor, local_rank=0, receipt_interval_s=1, **settings)

def step(exporter, number, loss, data_s=0.001):
    for phase, seconds in (("data", data_s), ("forward", 0.004), ("backward", 0.008)):
        with exporter.phase(phase):
            time.sleep(seconds)
    exporter.observe_step(number, loss, grad_norm=1 + 0.01 * (number % 7), batch_size=4)

def usual(number):
    return 2 + 0.01 * (number % 5)
"""

_FIRST = """
with trained(run=RUN, rank=0, world_size=3) as exporter:
    sys.stdin.readline()
    for number in range(120):
        step(exporter, number, 9 if number == 80 else usual(number))
    exporter.observe_step(120, float("nan"), grad_norm=1, batch_size=4)
    exporter.observe_step(121, "no number")
    tell("broken")
    sys.stdin.readline()
"""

_SECOND = """
with trained(run=RUN, rank=0, world_size=3, port=PORT) as exporter:
    for number in range(100, 100_000):
        step(exporter, number, usual(number) + (5 if number < 110 else 0))
"""

_OTHER = """
with trained(run=RUN, rank=RANK, world_size=3) as exporter:
    for number in range(100_000):
        step(exporter, number, usual(number), data_s=0.012 if RANK == 1 else 0.001)
"""

_HEALTHY = """
with trained(run=RUN, rank=0, world_size=1, linger_s=20) as exporter:
    tell("training")
    threading.Thread(target=lambda: (sys.stdin.readline(), end.set()), daemon=True).start()
    number = 0
    while not end.is_set():
        step(exporter, number, usual(number))
        number += 1
"""


class SickRun:
    """The run as it is at the end of its faults; `prometheus` has seen all of it."""

    def __init__(self, prometheus: PrometheusServer, healthy: Script, began: float) -> None:
        self.prometheus = prometheus
        self.healthy = healthy
        self.began = began
        self.ended = 0.0

    def finish_the_healthy_one(self) -> None:
        """Let the second run end; Prometheus sees its last word, and then no process."""
        self.healthy.go_on()
        assert self.healthy.end()[0] == 0


def firing(alert: str) -> str:
    """PromQL that has a sample while `alert` fires for the sick run."""
    return f'ALERTS{{alertname="TrainingHealth{alert}",alertstate="firing",run="{RUN}"}}'


@contextlib.contextmanager
def sick_run(folder: Path) -> Iterator[SickRun]:
    """Until all faults have been noticed: some 25 s."""
    with contextlib.ExitStack() as stack:

        def script(body: str, name: str, environ: dict[str, str] | None = None) -> Script:
            started = Script(_TRAINER + body, folder / name, environ=environ)
            stack.callback(started.dispose)
            return started

        began = time.time()
        named = f"RUN = {RUN!r}\n"
        nobody = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
        }
        first = script(named + _FIRST, "rank-0")
        second = script(f"{named}RANK = 1{_OTHER}", "rank-1", nobody)
        third = script(f"{named}RANK = 2{_OTHER}", "rank-2")
        healthy = script(f"RUN = {HEALTHY!r}\nend = threading.Event(){_HEALTHY}", "healthy")
        ports = [each.port for each in (first, second, third, healthy)]
        prometheus = stack.enter_context(watching(folder / "prometheus", ports))

        prometheus.wait_until("count(up == 1) == 4")
        first.go_on()
        first.wait_for("broken")
        prometheus.wait_until(firing("LossNotFinite"))
        prometheus.wait_until(firing("ObservationsRejected"))
        poll(lambda: any(first.folder.glob("*/state.json")))
        first.process.kill()
        first.process.wait()
        script(f"{named}PORT = {first.port}{_SECOND}", "rank-0")
        prometheus.wait_until(firing("LossyResume"))
        # A rank that was last seen before the attempt began may have scaled away, and is not dead.
        started = f'max(training_health_run_start_timestamp_seconds{{run="{RUN}"}})'
        prometheus.wait_until(f"time() - {started} > 8")
        third.process.kill()
        prometheus.wait_until(firing("RankDead"))
        run = SickRun(prometheus, healthy, began)
        run.ended = time.time()
        yield run


def watching(folder: Path, ports: list[int | None], *, rules: bool = True) -> PrometheusServer:
    """A Prometheus that scrapes these ports every second."""
    files = build(REPOSITORY / "alerts" / "source", values()) if rules else {}
    (folder / "rules").mkdir(parents=True)
    for name, text in files.items():
        if name.startswith("rules/"):
            (folder / name).write_text(text)
    targets = [f"127.0.0.1:{port}" for port in ports]
    return PrometheusServer(
        folder,
        config={
            "global": {
                "scrape_interval": "1s",
                "scrape_timeout": "1s",
                "evaluation_interval": "1s",
            },
            "rule_files": ["rules/*.yml"],
            "scrape_configs": [{"job_name": "trainer", "static_configs": [{"targets": targets}]}],
        },
    )


def values() -> dict[str, str]:
    """Those of the rules, for scrapes every second."""
    return load_values(REPOSITORY / "alerts" / "values.yaml", faster=15)

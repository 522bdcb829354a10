"""A real Prometheus scrapes real trainers, which are also killed and started again."""

from __future__ import annotations

import random
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.stack.conftest import StartPrometheus
from tests.stack.prometheus_server import PrometheusServer, require_tool
from tests.stack.trainer_script import Script, StartScript
from tests.unit.export.raw_http import exchange, get

# Trains until a line comes on its standard input; each step takes `pause` seconds.
TRAIN = """
import math, json
pause = float(os.environ.get("PAUSE", "0.002"))
told = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
from health_exporter import ModelFlopConfig, TrainingHealthMonitor
monitor = TrainingHealthMonitor.production(
    flop_config=ModelFlopConfig(n_params=1000, n_layer=2, n_head=2, d_model=16, seq_len=8),
    peak_flops_per_sec=1e9,
)
settings = json.loads(os.environ.get("SETTINGS", "{}"))
with HealthExporter(
    monitor, run="r", address="127.0.0.1", receipt_dir=sys.argv[2],
    **{"port": 0, "linger_s": 0, **settings},
) as exporter:
    tell("port", exporter.port)
    step = monitor.run.last_step + 1
    while not told.is_set():
        loss = 2.0 + (step % 7) / 100
        if step == int(os.environ.get("NAN_AT", "-1")):
            loss = math.nan
        with exporter.phase("forward"):
            time.sleep(pause)
        exporter.observe_step(step, loss, grad_norm=1.0 + (step % 5) / 100, batch_size=8)
        step += 1
tell("done")
"""


def scrape_config(*targets: str) -> dict[str, object]:
    return {"targets": targets, "scrape_interval": "200ms"}


def target(script: Script) -> str:
    return f"127.0.0.1:{script.port}"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def value(server: PrometheusServer, promql: str) -> float:
    ((_, found),) = server.query(promql)
    return found


def test_values_of_two_ranks_arrive(
    start: StartScript, prometheus: StartPrometheus, tmp_path: Path
):
    folder = tmp_path / "receipts"
    world = {"WORLD_SIZE": "2", "NAN_AT": "100"}
    ranks = [
        start(TRAIN, folder=folder, environ={**world, "RANK": str(r), "LOCAL_RANK": str(r)})
        for r in range(2)
    ]
    server = prometheus(**scrape_config(*map(target, ranks)))

    server.wait_until("training_health_step > 200")
    server.wait_until("count(training_health_rank_step > 200) == 2")
    assert 2.0 <= value(server, "training_health_loss") <= 2.06
    assert value(server, 'training_health_anomalies_total{kind="nan_inf_loss"}') == 1
    assert len(server.query("training_health_anomalies_total")) == 9
    assert value(server, 'training_health_last_anomaly_step{kind="nan_inf_loss"}') == 100
    assert value(server, 'training_health_run_state{state="running"}') == 1
    assert value(server, "sum(training_health_run_state)") == 1
    assert value(server, "training_health_world_size") == 2
    assert value(server, "training_health_mfu_ratio") > 0
    assert 0 < value(server, "training_health_goodput_ratio") <= 1
    ((labels, _),) = server.query("training_health_run_info")
    assert labels["run"] == "r"
    assert labels["world_size"] == "2"
    server.wait_until("sum(rate(training_health_steps_total[5s])) > 10")
    server.wait_until(
        "histogram_quantile(0.5, rate(training_health_step_duration_seconds_bucket[5s])) < 0.1"
    )
    heartbeat = value(server, "max(time() - training_health_rank_heartbeat_timestamp_seconds)")
    assert heartbeat < 5
    for rank in ranks:
        rank.go_on()
        assert rank.end()[0] == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_promtool_finds_nothing_to_say(start: StartScript, rank: int):
    script = start(TRAIN, environ={"WORLD_SIZE": "2", "RANK": str(rank), "NAN_AT": "2"})
    assert script.port is not None
    for accept in ("", "application/openmetrics-text"):
        answer = exchange(script.port, get("/metrics", Accept=accept))
        assert answer.status == 200
        if accept:
            continue  # promtool reads the text format only
        checked = subprocess.run(
            [require_tool("promtool"), "check", "metrics"],
            input=answer.body,
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_counters_go_on_over_kill_9_without_a_reset(
    start: StartScript, prometheus: StartPrometheus, tmp_path: Path
):
    """Killed at random moments, also right after a scrape, and started again on its port."""
    folder, port = tmp_path / "receipts", free_port()
    environ = {"SETTINGS": f'{{"port": {port}}}', "PAUSE": "0.001", "NAN_AT": "40"}
    server = prometheus(**scrape_config(f"127.0.0.1:{port}"))
    kills = 6
    steps = 0.0
    for number in range(kills + 1):
        script = start(TRAIN, folder=folder, environ=environ)
        assert script.port == port
        # From the first scrape on, with what was counted before.
        (_, steps), *_ = server.wait_until(
            f"training_health_restarts_total == {number} and on() "
            f"training_health_steps_total > {steps}"
        ) and server.query("training_health_steps_total")
        time.sleep(random.uniform(0.0, 0.5))
        if number < kills:
            script.process.kill()
            script.process.wait()
    script.go_on()
    assert script.end()[0] == 0

    for name in (
        "steps_total",
        "restarts_total",
        "anomalies_total",
        "step_duration_seconds_count",
        "step_duration_seconds_sum",
        "step_duration_seconds_bucket",
        "tokens_total",
        "lost_steps_total",
    ):
        resets = server.query(f"resets(training_health_{name}[5m])")
        assert resets, name
        assert {count for _, count in resets} == {0.0}, name
    report = script.report()
    assert report["restarts"]["n"] == kills
    assert report["restarts"]["continuity_ok"]
    assert report["status"] == "finished"
    assert report["anomalies_by_kind"]["nan_inf_loss"] == 1
    assert report["goodput"] > 0


def test_prometheus_sees_the_end_before_the_process_ends(
    start: StartScript, prometheus: StartPrometheus, tmp_path: Path
):
    environ = {"SETTINGS": '{"linger_s": 30}'}
    script = start(TRAIN, environ=environ)
    server = prometheus(**scrape_config(target(script)))
    server.wait_until("training_health_step > 10")
    script.go_on()
    began = time.monotonic()

    assert script.end()[0] == 0
    assert time.monotonic() - began < 15
    last = 'last_over_time(training_health_run_state{state="finished"}[1m]) == 1'
    server.wait_until(last, 5)
    assert value(server, f"count({last.replace('run_state', 'rank_state')})") == 1
    assert value(server, f"count({last.replace('finished', 'running')}) or vector(0)") == 0


@pytest.mark.parametrize("how", ["SIGTERM", "exception"])
def test_prometheus_sees_a_bad_end_too(start: StartScript, prometheus: StartPrometheus, how: str):
    body = TRAIN.replace('tell("done")', "")
    if how == "exception":
        body = body.replace(
            "        step += 1\n", "        step += 1\n    raise ValueError('bad')\n"
        )
    script = start(body, environ={"SETTINGS": '{"linger_s": 30}'})
    server = prometheus(**scrape_config(target(script)))
    server.wait_until("training_health_step > 10")
    if how == "SIGTERM":
        script.process.terminate()
    else:
        script.go_on()

    assert script.end()[0] == (-15 if how == "SIGTERM" else 1)
    state = {"SIGTERM": "terminated", "exception": "failed"}[how]
    server.wait_until(f'last_over_time(training_health_run_state{{state="{state}"}}[1m]) == 1', 5)


def counters(script: Script) -> dict[str, float]:
    """Those of the run that a scrape sees; others begin at 0 with each process."""
    assert script.port is not None
    lines = exchange(script.port, get("/metrics")).body.decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if line.startswith("training_health_"))
    return {
        name: float(number)
        for name, _, number in pairs
        if any(f"{end}{{" in name for end in ("_total", "_count", "_sum", "_bucket"))
        and not any(part in name for part in ("rank=", "rejected", "receipt_write"))
    }


def test_what_a_scrape_saw_outlives_a_kill_right_after_it(start: StartScript, tmp_path: Path):
    folder = tmp_path / "receipts"
    for _ in range(5):
        trainer = start(TRAIN, folder=folder, environ={"PAUSE": "0.001"})
        time.sleep(random.uniform(0.1, 0.4))
        seen = counters(trainer)
        trainer.process.kill()
        trainer.process.wait()

        idle = start(TRAIN, folder=folder, environ={"PAUSE": "1000"})
        after = counters(idle)
        idle.process.kill()
        idle.process.wait()

        assert len(seen) > 30
        assert {name: (n, after[name]) for name, n in seen.items() if after[name] < n} == {}

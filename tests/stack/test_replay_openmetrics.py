"""An old log, in a real Prometheus: promtool takes the file, and the loss can be asked for."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from health_exporter.cli import main
from tests.stack.prometheus_server import PrometheusServer, require_tool

StartPrometheus = Callable[..., PrometheusServer]

# Prometheus keeps 15 days where nothing else is configured, so an old run needs a newer date, or
# a longer retention; these tests take the first way or put the data there themselves.
_START = 1_700_000_000.0


def write_log(path: Path, *, dates: bool) -> Path:
    """300 steps of 2 s; NaN at step 200, a resume that goes back to step 250."""
    with path.open("w") as file:
        for row, step in enumerate([*range(280), *range(250, 300)]):
            record: dict[str, Any] = {
                "step": step,
                "loss": float("nan") if step == 200 else 2.5 + step / 1000,
                "grad_norm": 1.0,
                "step_time_s": 2.0,
            }
            if dates:
                record["timestamp"] = _START + 2.0 * row
            file.write(json.dumps(record) + "\n")
    return path


def build(folder: Path, log: Path, *options: str) -> Path:
    """The TSDB that promtool makes of a replay."""
    metrics = folder / "run.om"
    status = main(["replay", str(log), "--json", "--run", 'a "run"', "--openmetrics", str(metrics),
                   *options])  # fmt: skip
    assert status == 1  # there is a NaN in it
    assert metrics.read_text().endswith("\n# EOF\n")
    data = folder / "data"
    done = subprocess.run(
        [require_tool("promtool"), "tsdb", "create-blocks-from", "openmetrics", metrics, data],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return data


@pytest.fixture
def ask(prometheus: StartPrometheus, tmp_path: Path) -> Callable[..., list[tuple[float, str]]]:
    """Starts a Prometheus on data, and gives the answers to a query over a time."""
    servers: dict[Path, PrometheusServer] = {}

    def query(data: Path, promql: str, start: float, end: float, step: float) -> Any:
        if data not in servers:
            # Where the fixture will look for its data.
            target = tmp_path / "prometheus-1" / "data"
            target.parent.mkdir(parents=True)
            data.rename(target)
            servers[data] = prometheus(config={"global": {}})
        found = servers[data].get(
            "/api/v1/query_range", query=promql, start=str(start), end=str(end), step=str(step)
        )["result"]
        return [
            (series["metric"], [(at, value) for at, value in series["values"]]) for series in found
        ]

    return query


def test_the_loss_comes_back_as_it_was_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ask: Any
) -> None:
    data = build(tmp_path, write_log(tmp_path / "log.jsonl", dates=True))
    assert json.loads(capsys.readouterr().out)["openmetrics"]["first_time"] == _START
    ((labels, points),) = ask(data, "training_health_loss", _START, _START + 659, 2)
    assert labels == {"__name__": "training_health_loss", "run": 'a "run"'}
    assert len(points) == 330
    assert points[100] == (_START + 200, "2.6")
    assert points[200][1] == "NaN"
    assert points[280][1] == "2.75"  # the resume

    ((_, points),) = ask(
        data, 'training_health_anomalies_total{kind="nan_inf_loss"}', _START, _START + 659, 2
    )
    assert (points[199][1], points[200][1], points[-1][1]) == ("0", "1", "1")
    ((_, points),) = ask(data, "training_health_restarts_total", _START, _START + 659, 2)
    assert (points[279][1], points[280][1]) == ("0", "1")
    ((_, points),) = ask(
        data,
        "histogram_quantile(0.5, sum by (le) "
        "(increase(training_health_step_duration_seconds_bucket[2m])))",
        _START + 300, _START + 302, 2,
    )  # fmt: skip
    assert 1.0 < float(points[0][1]) <= 2.5
    ((_, points),) = ask(
        data, 'training_health_last_anomaly_timestamp_seconds{kind="nan_inf_loss"}',
        _START + 600, _START + 602, 2,
    )  # fmt: skip
    assert float(points[0][1]) == _START + 400


def test_a_log_without_dates_is_placed_where_it_is_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ask: Any
) -> None:
    log = write_log(tmp_path / "log.jsonl", dates=False)
    data = build(tmp_path, log, "--start", "2024-05-01T12:00:00Z")
    start = 1_714_564_800.0
    report = json.loads(capsys.readouterr().out)["openmetrics"]
    # 279 + 1 + 49 steps of 2 s come after the first one.
    assert (report["first_time"], report["last_time"]) == (start, start + 658.0)
    ((_, points),) = ask(data, "training_health_loss", start, start + 658, 2)
    assert points[100][1] == "2.6"
    ((_, points),) = ask(
        data, 'training_health_last_anomaly_timestamp_seconds{kind="nan_inf_loss"}',
        start + 600, start + 602, 2,
    )  # fmt: skip
    assert float(points[0][1]) == start + 400


def test_a_gap_between_lines_is_filled_as_scrapes_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ask: Any
) -> None:
    log = tmp_path / "log.csv"
    # A line every 20 minutes; Prometheus looks back for five.
    lines = [f"{100 * n},{2.5 if n else 'nan'},{_START + 1200 * n}\n" for n in range(4)]
    log.write_text("step,loss,timestamp\n" + "".join(lines))
    data = build(tmp_path, log)
    capsys.readouterr()
    ((_, points),) = ask(data, "training_health_step", _START, _START + 3600, 300)
    assert [value for _, value in points] == ["0"] * 4 + ["100"] * 4 + ["200"] * 4 + ["300"]

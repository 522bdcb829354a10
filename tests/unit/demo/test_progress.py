from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from health_exporter.demo.event import parse
from health_exporter.demo.progress import StepProgress
from health_exporter.demo.settings import DemoSettings
from health_exporter.demo.text import found_line, introduction, prometheus_configuration


def step(number: int, *anomalies: str, mfu: float | None = 0.25) -> dict[str, Any]:
    return {
        "event": "step",
        "step": number,
        "loss": 2.5,
        "grad_norm": 0.5,
        "tokens_per_second": 12345.6,
        "mfu": mfu,
        "anomalies": list(anomalies),
    }


def shown(*events: dict[str, Any], steps: int, terminal: bool = False) -> str:
    output = io.StringIO()
    with StepProgress(Console(file=output, force_terminal=terminal, width=120), steps) as progress:
        for event in events:
            progress.show(event)
    return output.getvalue()


def test_a_pipe_gets_some_twenty_plain_lines_however_long_the_run():
    lines = shown(*(step(i) for i in range(1000)), steps=1000).splitlines()

    assert len(lines) == 20
    assert "loss  2.5000" in lines[0]
    assert "12,346 tokens/s  MFU 25.0%" in lines[0]


def test_an_anomaly_is_shown_at_once():
    lines = shown(step(3, "loss_spike"), step(4, "grad_norm_spike"), steps=1000).splitlines()

    assert "step    3" in lines[0]
    assert lines[0].endswith("<- loss_spike")
    assert "anomalies 2" in lines[1]


def test_an_unknown_mfu_is_no_number():
    assert "MFU     -" in shown(step(0, mfu=None), steps=1)


def test_a_terminal_gets_one_line_that_renews_itself():
    output = shown(step(0), step(1), steps=100, terminal=True)

    assert "step 2/100" in output
    assert "step   1  loss" not in output


def test_only_whole_events_are_taken_for_events():
    assert parse('@demo {"event": "step", "step": 1}\n') == {"event": "step", "step": 1}
    assert parse("a line of torchrun\n") is None
    assert parse('@demo {"event": "st') is None
    assert parse("@demo [1]\n") is None


def test_prometheus_is_told_of_the_ports_that_there_are():
    assert '["127.0.0.1:1", "127.0.0.1:3"]' in prometheus_configuration([1, None, 3])


def test_the_peak_is_said_to_be_measured_and_of_all_ranks():
    serving = {
        rank: {"port": 19400 + rank, "rank_peak": 50e9, "n_params": 800_000} for rank in (0, 1)
    }

    lines = list(introduction(DemoSettings(), serving, Path("p.yml"), first=True))

    assert any("100 GFLOP/s, measured: 2 x 50 GFLOP/s" in line for line in lines)
    assert any(line.startswith("metrics   http://localhost:19401/metrics") for line in lines)
    assert any("prometheus --config.file=p.yml" in line for line in lines)


def test_how_it_went():
    spike = {"kind": "loss_spike", "step": 7, "rank": None}
    dead = {"kind": "dead_rank", "step": 7, "rank": "1"}

    def line(fault: str, *found: dict[str, Any], finished: bool = True) -> str:
        return found_line(DemoSettings(fault=fault), found, found, finished=finished)

    assert line("none") == "the run finished; no anomalies"
    assert line("crash", finished=False) == "fault crash: the run did not finish; no anomalies"
    assert line("loss-spike", spike).endswith("the run finished; found as loss_spike in step 7")
    assert line("loss-spike").endswith("NOT FOUND, no anomalies")
    assert line("kill-rank", dead, finished=False).endswith(
        "found as dead_rank of rank 1 in step 7"
    )

"""The demo as a person runs it: torchrun, two ranks, real faults, new processes after a resume."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

# Two ranks start in a few seconds; on a machine that does much else at once, in a minute.
pytestmark = pytest.mark.timeout(180)
DEADLINE_S = 150.0

# A model that trains in milliseconds a step, and is large enough that its faults show.
SMALL = {"steps": 80, "n_layer": 2, "n_head": 2, "d_model": 64, "seq_len": 32}

PROGRAM = """
import json, sys
from rich.console import Console
from health_exporter.demo.launch import Launcher
from health_exporter.demo.settings import DemoSettings
sys.exit(Launcher(DemoSettings(**json.loads(sys.argv[1])), Console()).run())
"""


class Demo:
    """A demo in a process of its own; its output is read as it comes."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self.folder = folder
        self.output = ""
        self.pages: dict[int, str] = {}
        """What each rank's endpoint has answered while the demo trained."""
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def read_to(self, word: str) -> str:
        """The first line from here on that has `word` in it; endpoints are scraped on the way."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if line.startswith("metrics "):
                rank = int(line.rpartition("rank ")[2].rstrip(")\n"))
                self.pages[rank] = scrape(line.split()[1])
            if word in line:
                return line
        raise AssertionError(f"no {word!r} in:\n{self.output}")

    def finish(self) -> int:
        """Its exit status, once it has ended and everything has been read."""
        with contextlib.suppress(AssertionError):
            self.read_to("\0")
        return self.process.wait(DEADLINE_S)

    @property
    def receipt(self) -> dict[str, Any]:
        path = self.folder / "receipts" / "demo" / "report.json"
        receipt: dict[str, Any] = json.loads(path.read_text())
        return receipt

    def processes(self) -> list[int]:
        """Those of the job that are there: torchrun and the ranks have its file as an argument."""
        mark = str(self.folder / "demo.json").encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (path / "cmdline").read_bytes():
                    found.append(int(path.name))
        return found

    def dispose(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process.stdout is not None:
            self.process.stdout.close()


Start = Callable[..., Demo]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a small demo with the given settings; what is left of it ends with the test."""
    started: list[Demo] = []

    def begin(**settings: object) -> Demo:
        given = {**SMALL, "port": 0, "out": str(tmp_path), **settings}
        started.append(Demo(tmp_path, ["-c", PROGRAM, json.dumps(given)]))
        return started[-1]

    yield begin
    for demo in started:
        demo.dispose()


def scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as response:
        page: str = response.read().decode()
    return page


def wait_until(condition: Callable[[], bool], deadline_s: float) -> bool:
    """Poll for something that processes do by themselves."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def kinds(receipt: Mapping[str, Any]) -> dict[str, int]:
    return {kind: count for kind, count in receipt["anomalies_by_kind"].items() if count}


def assert_both_ranks_served(demo: Demo) -> None:
    assert sorted(demo.pages) == [0, 1]
    for rank, page in demo.pages.items():
        assert "training_health_rank_info{" in page
        assert f'rank="{rank}"' in page


def test_a_healthy_run_by_the_command_line(tmp_path: Path):
    demo = Demo(
        tmp_path,
        ["-m", "health_exporter.cli", "demo", "--port=0", f"--out={tmp_path}", "--steps=40"],
    )
    try:
        status = demo.finish()
        left = demo.processes()
    finally:
        demo.dispose()

    assert status == 0, demo.output
    receipt = demo.receipt
    assert (receipt["status"], receipt["healthy"], kinds(receipt)) == ("finished", True, {})
    assert (receipt["n_steps"], receipt["world_size"]) == (40, 2)
    assert receipt["n_tokens"] == 40 * 64 * 64  # 64 sequences of 64 bytes in a step
    assert 0 < receipt["mfu"]["mean"] < 1
    assert_both_ranks_served(demo)
    assert "the run finished; no anomalies" in demo.output
    assert f"receipt: {tmp_path}/receipts/demo/report.json" in demo.output
    assert (tmp_path / "prometheus.yml").is_file()
    assert left == []


def test_nan_is_found_in_its_step(start: Start):
    demo = start(fault="nan", at_step=20)

    assert demo.finish() == 1, demo.output  # a run with a NaN loss is not healthy
    assert demo.receipt["status"] == "finished"
    assert kinds(demo.receipt) == {"nan_inf_loss": 1, "nan_inf_grad": 1}
    assert [a["step"] for a in demo.receipt["anomalies"]] == [20, 20]
    assert "fault nan: the run finished; found as nan_inf_loss in step 20" in demo.output
    assert_both_ranks_served(demo)


def test_a_spike_is_found_in_its_step(start: Start):
    demo = start(fault="loss-spike", at_step=60)

    assert demo.finish() == 0, demo.output  # a spike is no reason to wake anybody
    assert demo.receipt["status"] == "finished"
    spikes = [a for a in demo.receipt["anomalies"] if a["kind"] == "loss_spike"]
    assert [a["step"] for a in spikes] == [60]
    assert set(kinds(demo.receipt)) <= {"loss_spike", "grad_norm_spike"}
    assert_both_ranks_served(demo)


def test_a_crash_is_in_the_receipt(start: Start):
    demo = start(fault="crash", at_step=15)

    assert demo.finish() == 1, demo.output
    assert demo.receipt["status"] == "failed"
    assert demo.receipt["exception"]["type"] == "RuntimeError"
    assert "step 15" in demo.receipt["exception"]["message"]
    assert demo.receipt["n_steps"] == 15
    assert "the run did not finish" in demo.output
    assert "RuntimeError: demo fault" in (demo.folder / "trainer.log").read_text()
    assert_both_ranks_served(demo)


def test_a_good_resume_raises_nothing(start: Start):
    demo = start(fault="resume", at_step=52)

    assert demo.finish() == 0, demo.output
    receipt = demo.receipt
    assert (receipt["status"], kinds(receipt)) == ("finished", {})
    # The last checkpoint was after step 49; steps 50 to 52 are done again.
    assert receipt["restarts"]["steps"] == [50]
    assert receipt["restarts"]["lost_steps"] == 3
    assert receipt["restarts"]["continuity_ok"] is True
    assert receipt["n_steps"] == 83
    assert demo.output.count("\nmetrics ") == 4  # the new processes serve too
    assert_both_ranks_served(demo)


def test_a_lossy_resume_is_found_within_two_steps(start: Start):
    demo = start(fault="lossy-resume", at_step=52)

    assert demo.finish() == 1, demo.output
    receipt = demo.receipt
    assert receipt["status"] == "finished"
    assert receipt["restarts"]["continuity_ok"] is False
    found = [a for a in receipt["anomalies"] if a["kind"] == "restart_discontinuity"]
    assert len(found) == 1
    assert found[0].get("detected_at_step", found[0]["step"]) in (50, 51)
    assert "restart_discontinuity" in demo.output
    assert_both_ranks_served(demo)


def test_a_killed_rank_ends_the_job(start: Start):
    demo = start(fault="kill-rank", at_step=15)

    assert demo.finish() == 1, demo.output
    assert demo.receipt["status"] in ("failed", "terminated")  # whoever is first: gloo or torchrun
    assert demo.receipt["n_steps"] == 15
    assert demo.processes() == []


def test_a_stopped_rank_is_ended_after_a_while(start: Start):
    demo = start(fault="stop-rank", at_step=15, fault_hold_s=1)

    assert demo.finish() == 1, demo.output
    assert "1 s have passed: ending the job" in demo.output
    assert demo.receipt["status"] in ("failed", "terminated")
    assert demo.processes() == []


def test_an_interrupt_ends_all_processes_and_is_in_the_receipt(start: Start):
    demo = start(steps=1000)
    demo.read_to("loss")
    demo.process.send_signal(signal.SIGINT)

    assert demo.finish() == 130, demo.output
    assert demo.receipt["status"] == "interrupted"
    assert demo.processes() == []


def test_a_launcher_that_is_killed_leaves_no_process(start: Start):
    demo = start(fault="hang-rank", at_step=5, fault_hold_s=600)
    demo.read_to("fault hang-rank")
    assert demo.processes()
    demo.process.kill()

    # The hung rank has 10 s for an orderly end, torchrun 30 s for what is left.
    assert wait_until(lambda: not demo.processes(), deadline_s=60)

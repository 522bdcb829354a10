"""Ranks of real jobs that go wrong: the verdict, who is blamed, and how soon."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from health_exporter.runtime.receipt_reader import read_receipt

SCRIPT = Path(__file__).with_name("rank_script.py")
STORE = """
import sys, time, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print("ready", flush=True)
time.sleep(600)
"""
N_RANKS = 4
BAD = 2

pytestmark = pytest.mark.timeout(150)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def say(text: str) -> None:
    """A measurement, for `pytest --capture=no`."""
    sys.stdout.write(f"\n{text}\n")


class Job:
    """Ranks started one by one, as srun does, or by torchrun; stopped by their process ids."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.receipts = folder / "receipts"
        self.ports = folder / "ports"
        self.ports.mkdir()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start_store(self, port: int) -> None:
        """A server of the job's store that no rank's death takes down."""
        process = subprocess.Popen(
            [sys.executable, "-c", STORE, str(port)], stdout=subprocess.PIPE, env=self._environ()
        )
        self.processes["store"] = process
        assert process.stdout is not None
        with process.stdout:
            assert process.stdout.readline() == b"ready\n"

    def start_ranks(
        self, fault: str, *pairs: str, bad: int = BAD, size: int = N_RANKS, without: int = -1
    ) -> None:
        port = free_port()
        self.start_store(port)
        for rank in range(size):
            if rank == without:
                continue
            environ = self._environ(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(size),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                TORCHELASTIC_USE_AGENT_STORE="True",
                TORCHELASTIC_RUN_ID="test",
            )
            self._start(f"rank {rank}", [sys.executable], fault, bad, pairs, environ)

    def start_torchrun(self, fault: str, *pairs: str, bad: int = BAD, size: int = N_RANKS) -> None:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        launcher += ["--nproc-per-node", str(size)]
        self._start("torchrun", launcher, fault, bad, pairs, self._environ())

    def _start(
        self,
        name: str,
        launcher: list[str],
        fault: str,
        bad: int,
        pairs: tuple[str, ...],
        environ: dict[str, str],
    ) -> None:
        arguments = [str(SCRIPT), str(self.receipts), str(self.ports), fault, str(bad), *pairs]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*launcher, *arguments], stdout=log, stderr=log, env=environ
            )

    @staticmethod
    def _environ(**more: str) -> dict[str, str]:
        return {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **more}

    def page(self, rank: int = 0, path: str = "/metrics") -> str:
        port = int((self.ports / str(rank)).read_text())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def value(self, series: str, rank: int = 0) -> float | None:
        """Value of the first series that the regular expression matches; None without one."""
        try:
            page = self.page(rank)
        except (OSError, ValueError):
            return None
        found = re.search(rf"^{series} (\S+)$", page, re.M)
        return float(found[1]) if found else None

    def ranks(self, status: str) -> float | None:
        return self.value(rf'training_health_ranks{{run="run",status="{status}"}}')

    def suspects(self) -> list[tuple[int, str]]:
        found = re.findall(
            r'^training_health_suspect_rank{host=".*?",rank="(\d+)",reason="(\w+)"',
            self.page(),
            re.M,
        )
        return [(int(rank), reason) for rank, reason in found]

    def wait(self, what: str, holds: Callable[[], bool], seconds: float = 60.0) -> float:
        """Seconds until it holds.

        Fails with the ranks' last lines when it does not hold in time.
        """
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            if holds():
                return time.monotonic() - started
            time.sleep(0.1)
        pytest.fail(f"not within {seconds:.0f} s: {what}\n{self.logs()}")

    def wait_until_training(self, step: int = 5) -> None:
        def trains() -> bool:
            return (self.value('training_health_rank_step{rank="0",run="run"}') or 0) >= step

        self.wait("training", trains)
        self.wait("all ranks seen", lambda: self.ranks("missing") == 0)

    def anomalies(self) -> list[dict[str, Any]]:
        lines = (self.receipts / "run" / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == "anomaly"]

    def logs(self) -> str:
        return "\n".join(
            f"--- {log.name}\n" + log.read_text(errors="replace")[-1500:]
            for log in sorted(self.folder.glob("*.log"))
        )

    def kill(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    started = Job(tmp_path)
    try:
        yield started
    finally:
        started.kill()


def the_only_outage(job: Job) -> dict[str, Any]:
    (found,) = (a for a in job.anomalies() if a["kind"] in ("dead_rank", "stuck_rank"))
    return found


@pytest.mark.parametrize("fault", ["kill", "os_exit"])
def test_a_process_that_vanishes_is_dead_and_alone_to_blame(job: Job, fault: str):
    job.start_ranks(fault, "linger_s=8")
    job.wait("the end of the bad rank", lambda: job.processes[f"rank {BAD}"].poll() is not None)
    seconds = job.wait("a dead rank", lambda: job.ranks("dead") == 1)
    say(f"{fault}: dead after {seconds:.1f} s")
    assert job.suspects() == [(BAD, "dead")]
    outage = the_only_outage(job)
    assert (outage["kind"], outage["rank"]) == ("dead_rank", str(BAD))
    assert outage["host"] == socket.gethostname()
    assert 0 <= outage["step"] <= 14  # of its last beat
    assert seconds < 5.0


def test_a_stopped_process_is_dead_after_the_beat_timeout(job: Job):
    job.start_ranks("stop")
    job.wait_until_training()
    seconds = job.wait("a dead rank", lambda: job.ranks("dead") == 1)
    say(f"stop: dead {seconds:.1f} s after the start of training")
    assert job.suspects() == [(BAD, "dead")]
    assert the_only_outage(job)["rank"] == str(BAD)

    job.processes[f"rank {BAD}"].send_signal(signal.SIGCONT)
    job.wait("recovery", lambda: job.ranks("dead") == 0 and job.ranks("alive") == N_RANKS)
    assert job.suspects() == []


@pytest.mark.parametrize("marked_by", ["nobody", "all", "bad"])
def test_a_rank_that_hangs_in_its_data_is_told_from_those_that_wait_for_it(
    job: Job, marked_by: str
):
    job.start_ranks("hang", f"marked_by={marked_by}")
    job.wait_until_training()
    seconds = job.wait("a suspect", lambda: job.suspects() == [(BAD, "stuck")])
    say(f"hang, marked by {marked_by}: named {seconds:.1f} s after the start of training")
    job.wait("all stuck", lambda: job.ranks("stuck") == N_RANKS)
    outage = the_only_outage(job)
    assert (outage["kind"], outage["rank"]) == ("stuck_rank", str(BAD))
    assert outage["where"].endswith(" go_wrong")
    assert outage["phase"] == ("" if marked_by == "nobody" else "data")
    with pytest.raises(urllib.error.HTTPError) as unhealthy:
        job.page(BAD, "/healthz")
    assert unhealthy.value.code == 503
    unhealthy.value.close()
    (stacks,) = (job.receipts / "run").glob(f"stacks-rank{BAD}-*.txt")
    assert "in go_wrong" in stacks.read_text()


def test_a_rank_that_raises_has_failed_and_is_no_outage(job: Job):
    job.start_ranks("raise", "linger_s=8")
    job.wait("a goodbye", lambda: (job.ranks("finished") or 0) >= 1)
    job.wait("the suspect", lambda: (BAD, "failed") in job.suspects())
    # One scrape only: once that has seen how it ended, the rank waits no longer.
    assert re.search(
        r'^training_health_rank_exception_info{exception="ValueError",.*} 1.0$', job.page(BAD), re.M
    )
    assert job.anomalies() == []


def test_a_rank_that_never_starts_is_missing_after_the_startup_timeout(job: Job):
    job.start_ranks("none", "startup_timeout_s=6", without=3)
    job.wait("three ranks", lambda: job.ranks("missing") == 1)
    job.wait("the suspect", lambda: job.suspects() == [(3, "missing")], 30.0)
    assert job.value('training_health_run_state{run="run",state="starting"}') == 1.0


def test_a_long_checkpoint_is_no_outage(job: Job):
    job.start_ranks("checkpoint")
    job.wait_until_training(step=16)
    in_pause = r'training_health_rank_timeout_seconds{rank="0",run="run"}'
    job.wait("the end of the pause", lambda: (job.value(in_pause) or 99) < 60)
    job.wait_until_training(step=30)
    assert job.anomalies() == []
    assert job.ranks("alive") == N_RANKS


def test_a_store_whose_host_is_gone_makes_nobody_dead(job: Job):
    job.start_ranks("none")
    job.wait_until_training()
    job.processes["store"].kill()
    connected = r'training_health_rank_store_connected{rank="0",run="run"}'
    job.wait("the loss", lambda: job.value(connected) == 0.0)
    lost_at_step = job.value(r'training_health_rank_step{rank="0",run="run"}') or 0
    job.wait(  # twice the beat timeout later
        "more steps",
        lambda: (
            (job.value(r'training_health_rank_step{rank="0",run="run"}') or 0) > lost_at_step + 160
        ),
    )
    assert job.ranks("dead") == 0
    assert job.anomalies() == []
    log = (job.folder / "rank 0.log").read_text()
    assert log.count("the job's store is gone") == 1


def test_torchrun_ends_the_others_and_rank_0_still_names_the_killed_one(job: Job):
    job.start_torchrun("kill", "linger_s=6")
    job.wait_until_training()
    seconds = job.wait("a dead rank", lambda: job.ranks("dead") == 1)
    say(f"kill under torchrun: dead within {seconds:.1f} s of training")
    assert (BAD, "dead") in job.suspects()
    assert job.processes["torchrun"].wait(60) == 1
    receipt = read_receipt(job.receipts)
    assert receipt["status"] in ("terminated", "failed")
    assert [a["rank"] for a in receipt["anomalies"] if a["kind"] == "dead_rank"] == [str(BAD)]
    assert not receipt["healthy"]


def test_the_last_scrape_names_who_died_just_before_sigterm(job: Job):
    job.start_ranks("none", "linger_s=20")
    job.wait_until_training()
    job.processes[f"rank {BAD}"].kill()
    job.processes["rank 0"].terminate()
    pages = []
    with contextlib.suppress(OSError):
        while True:
            pages.append(job.page())
    # Its collective fails in the same moment; which of the two ends it is a matter of luck.
    last = pages[-1]
    assert re.search(r'^training_health_run_state{.*state="(terminated|failed)"} 1', last, re.M)
    assert re.search(rf'^training_health_suspect_rank{{.*rank="{BAD}",reason="dead"', last, re.M)


def test_sigterm_ends_every_rank_with_a_goodbye(job: Job):
    job.start_ranks("none")
    job.wait_until_training()
    ranks = [job.processes[f"rank {rank}"] for rank in range(N_RANKS)]
    for process in ranks:
        process.terminate()
    assert [process.wait(20) for process in ranks] == [-signal.SIGTERM] * N_RANKS
    receipt = read_receipt(job.receipts)
    assert receipt["status"] == "terminated"
    assert receipt["outages"] == []


def test_after_kill_of_rank_0_the_receipt_says_lost_and_who_was_alive(job: Job):
    job.start_ranks("none")
    job.wait_until_training(step=40)
    process = job.processes["rank 0"]
    step = job.value(r'training_health_step{run="run"}') or 0
    process.kill()
    process.wait()
    receipt = read_receipt(job.receipts)
    assert receipt["status"] == "lost"
    assert receipt["last_step"] >= step - 100  # five seconds of steps
    assert receipt["ranks"]["alive"] == N_RANKS


def test_ranks_that_a_restart_left_out_are_no_outage(job: Job):
    job.start_ranks("none")
    job.wait_until_training(step=40)
    steps = job.value(r'training_health_steps_total{run="run"}') or 0
    for process in job.processes.values():
        process.kill()
        process.wait()
    for port in job.ports.iterdir():
        port.unlink()

    job.start_ranks("none", "first=20", size=2)
    job.wait("two ranks", lambda: job.ranks("alive") == 2, 40.0)
    job.wait_until_training(step=60)
    assert job.ranks("missing") == job.ranks("dead") == 0
    assert job.value(r'training_health_restarts_total{run="run"}') == 1
    assert (job.value(r'training_health_lost_steps_total{run="run"}') or 0) >= 20
    assert (job.value(r'training_health_steps_total{run="run"}') or 0) >= steps
    assert job.value(r'training_health_continuity_ok{run="run"}') == 1
    assert job.suspects() == []
    assert job.anomalies() == []


def test_a_clean_end_says_finished_on_every_rank(job: Job):
    job.start_torchrun("none", "steps=30")
    assert job.processes["torchrun"].wait(60) == 0, job.logs()
    receipt = read_receipt(job.receipts)
    assert receipt["status"] == "finished"
    assert receipt["healthy"]
    assert receipt["ranks"]["finished"] == N_RANKS
    assert "Traceback" not in job.logs()

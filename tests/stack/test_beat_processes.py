"""Beats of real processes through a real store: what rank 0 finds out, and how soon."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stack.beat_rank import BEAT_TIMEOUT_S, INTERVAL_S, STUCK_S

pytest.importorskip("torch.distributed")

REPOSITORY = Path(__file__).resolve().parents[2]
RANK = [sys.executable, "-m", "tests.stack.beat_rank"]
PATIENCE_S = 60.0  # four processes import torch on a busy machine

SERVER = """
import datetime, sys, torch.distributed as distributed
store = distributed.TCPStore(
    "127.0.0.1", int(sys.argv[1]), None, True, datetime.timedelta(seconds=30),
    wait_for_workers=False)
print("serving", flush=True)
sys.stdin.read()
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def say(text: str) -> None:
    """A measurement, for `pytest --capture=no`."""
    sys.stdout.write(f"\n{text}")


class Process:
    """A process whose output lines arrive in a queue and whose stderr is kept."""

    def __init__(self, command: list[str], folder: Path, name: str, **environ: str) -> None:
        self.stderr_path = folder / f"{name}.stderr"
        self.lines: queue.Queue[str] = queue.Queue()
        with self.stderr_path.open("w") as stderr:
            self.popen = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environ},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        with self.popen.stdout as stdout:
            for line in stdout:
                self.lines.put(line)

    def tell(self, command: str) -> None:
        assert self.popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.popen.stdin.write(f"{command}\n")
            self.popen.stdin.flush()

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()
        assert self.popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.popen.stdin.close()
        self._reader.join(10)

    @property
    def stderr(self) -> str:
        return self.stderr_path.read_text()


class Job:
    """Ranks under `MASTER_ADDR` and `MASTER_PORT`, and the store's server beside them."""

    def __init__(self, folder: Path, world_size: int, *, serve: bool = True) -> None:
        self.folder = folder
        self.world_size = world_size
        self.port = free_port()
        self.ranks: dict[int, Process] = {}
        self.seen: list[dict[str, Any]] = []
        if serve:
            self.serve()

    def serve(self) -> None:
        command = [sys.executable, "-c", SERVER, str(self.port)]
        self.server = Process(command, self.folder, "server")
        assert self.server.lines.get(timeout=PATIENCE_S) == "serving\n"

    def start(self, *ranks: int, **environ: str) -> None:
        for rank in ranks:
            self.ranks[rank] = Process(
                RANK,
                self.folder,
                f"rank{rank}",
                RANK=str(rank),
                WORLD_SIZE=str(self.world_size),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(self.port),
                **environ,
            )

    def tell(self, command: str) -> None:
        for process in self.ranks.values():
            process.tell(command)

    def until(
        self, condition: Callable[[dict[str, Any]], bool], patience_s: float = PATIENCE_S
    ) -> float:
        """Seconds until rank 0 saw the ranks so."""
        began = time.monotonic()
        while True:
            left = began + patience_s - time.monotonic()
            try:
                line = self.ranks[0].lines.get(timeout=max(0.0, left))
            except queue.Empty:
                pytest.fail(f"not within {patience_s} s; last: {self.seen[-3:]}")
            if line.startswith("{"):
                self.seen.append(json.loads(line))
                if condition(self.seen[-1]):
                    return time.monotonic() - began

    def train(self, **environ: str) -> None:
        """All ranks are there, and past their first step."""
        self.start(*range(self.world_size), **environ)
        self.until(lambda seen: seen["counts"]["alive"] == self.world_size)
        self.tell("step")
        self.until(lambda seen: seen["steps"] == [0] * self.world_size)

    @property
    def accused(self) -> list[list[Any]]:
        return [outage for seen in self.seen for outage in seen["begun"]]

    def close(self) -> None:
        for process in (*self.ranks.values(), *([self.server] if hasattr(self, "server") else [])):
            process.kill()


StartJob = Callable[..., Job]


@pytest.fixture
def job_of(tmp_path: Path) -> Iterator[StartJob]:
    with contextlib.ExitStack() as jobs:

        def start(world_size: int, **arguments: bool) -> Job:
            job = Job(tmp_path, world_size, **arguments)
            jobs.callback(job.close)
            return job

        yield start


def test_a_killed_rank_is_dead_within_two_seconds_and_alone_to_blame(job_of: StartJob):
    job = job_of(4)
    job.train()
    job.ranks[2].popen.kill()
    took_s = job.until(lambda seen: seen["counts"]["dead"] == 1, 10)
    say(f"kill -9 to dead: {took_s:.2f} s at an interval of {INTERVAL_S} s")
    assert took_s < 2
    # The others wait for it, until each of them is stuck, and are not accused.
    job.until(lambda seen: seen["counts"]["stuck"] == 3)
    assert job.accused == [["dead_rank", 2]]
    assert job.seen[-1]["suspects"] == [[2, "dead"]]


def test_a_stopped_rank_is_dead_after_the_beat_timeout_and_may_come_back(job_of: StartJob):
    job = job_of(2)
    job.train()
    job.ranks[1].popen.send_signal(signal.SIGSTOP)
    took_s = job.until(lambda seen: seen["counts"]["dead"] == 1, 20)
    say(f"SIGSTOP to dead: {took_s:.2f} s at a timeout of {BEAT_TIMEOUT_S} s")
    assert BEAT_TIMEOUT_S - INTERVAL_S < took_s < BEAT_TIMEOUT_S + 5
    job.ranks[1].popen.send_signal(signal.SIGCONT)
    took_s = job.until(lambda seen: seen["counts"]["dead"] == 0, 20)
    say(f"SIGCONT to alive: {took_s:.2f} s")
    assert job.seen[-1]["ended"] == [[1, "recovered"]]
    assert job.accused == [["dead_rank", 1]]


def test_a_hanging_rank_is_found_among_those_that_wait_for_it(job_of: StartJob):
    job = job_of(4)
    job.train()
    for rank in (0, 1, 3):
        job.ranks[rank].tell("marks 2")
    job.ranks[2].tell("marks 1")
    took_s = job.until(lambda seen: bool(seen["begun"]))
    say(f"hang to culprit: {took_s:.2f} s at a timeout of {STUCK_S} s")
    assert job.accused == [["stuck_rank", 2]]
    assert took_s < STUCK_S + 5


def test_a_store_whose_host_is_gone_kills_nobody_and_comes_back(job_of: StartJob):
    job = job_of(2)
    job.train(STUCK_S="60")
    job.server.kill()
    job.until(lambda seen: not seen["connected"])
    with pytest.raises(pytest.fail.Exception):  # nothing happens for longer than the timeout
        job.until(lambda seen: seen["counts"]["alive"] < 2, BEAT_TIMEOUT_S + 2)
    job.serve()
    took_s = job.until(lambda seen: seen["connected"] and seen["counts"]["alive"] == 2)
    say(f"store back to connected: {took_s:.2f} s")
    job.tell("step")
    job.until(lambda seen: seen["steps"] == [1, 1])
    assert job.accused == []
    assert [process.stderr for process in job.ranks.values()] == ["", ""]


def test_a_store_that_hangs_kills_nobody_and_comes_back(job_of: StartJob):
    job = job_of(2)
    job.train(STUCK_S="60")
    job.server.popen.send_signal(signal.SIGSTOP)
    job.until(lambda seen: not seen["connected"])
    job.server.popen.send_signal(signal.SIGCONT)
    job.until(lambda seen: seen["connected"])
    job.tell("step")
    job.until(lambda seen: seen["steps"] == [1, 1])
    assert job.accused == []


def test_a_rank_that_never_starts_is_missing_after_the_startup_timeout(job_of: StartJob):
    job = job_of(3)
    job.start(0, 1, STARTUP_TIMEOUT_S="3")
    job.until(lambda seen: seen["counts"]["alive"] == 2)
    assert job.seen[-1]["counts"]["missing"] == 1
    job.until(lambda seen: seen["suspects"] == [[2, "missing"]])
    job.start(2)
    job.until(lambda seen: seen["counts"]["alive"] == 3)
    assert job.seen[-1]["suspects"] == []
    assert job.accused == []


def test_a_goodbye_is_heard_and_the_silence_after_it_is_no_news(job_of: StartJob):
    job = job_of(3)
    job.train()
    job.ranks[1].tell("goodbye finished")
    job.ranks[1].tell("end")
    job.ranks[2].tell("goodbye failed")
    job.ranks[2].tell("end")
    took_s = job.until(lambda seen: seen["counts"]["finished"] == 2)
    say(f"goodbye to finished: {took_s:.2f} s")
    assert job.seen[-1]["states"][1:] == ["finished", "failed"]
    with pytest.raises(pytest.fail.Exception):
        job.until(lambda seen: seen["counts"]["finished"] != 2, BEAT_TIMEOUT_S + 1)
    assert job.accused == []


def test_the_store_of_rank_0_itself_is_joined_and_its_end_makes_no_noise(job_of: StartJob):
    job = job_of(3, serve=False)
    job.start(0, 1, 2)
    job.tell("init")  # rank 0 opens the store here
    job.until(lambda seen: seen["counts"]["alive"] == 3)
    job.ranks[0].tell("end")
    job.ranks[0].popen.wait(20)
    for rank in (1, 2):
        job.ranks[rank].tell("goodbye finished")
        job.ranks[rank].tell("end")
    for rank, process in job.ranks.items():
        assert process.popen.wait(20) == 0, rank
        ours = [line for line in process.stderr.splitlines() if "gloo" not in line.lower()]
        assert ours == [], rank


def test_torchruns_own_store_is_used(tmp_path: Path):
    script = tmp_path / "trainer.py"
    script.write_text(
        "import json, os, sys, time\n"
        "from tests.stack.beat_rank import Rank\n"
        "rank = Rank(600)\n"
        "rank.exchange.start()\n"
        "import torch.distributed as distributed\n"
        "distributed.init_process_group('gloo')\n"
        "distributed.barrier()\n"
        "until = time.monotonic() + 60\n"
        "while rank.rank == 0 and time.monotonic() < until:\n"
        "    if rank.told and rank.told['counts']['alive'] == 3: break\n"
        "    time.sleep(0.05)\n"
        "distributed.barrier()\n"
        "print('said', rank.exchange.say_goodbye('finished'), flush=True)\n"
        "distributed.barrier()\n"
        "distributed.destroy_process_group()\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc-per-node", "3", str(script)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("said True") == 3
    standings = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert any(standing["counts"]["alive"] == 3 for standing in standings)
    assert "Exception raised from" not in done.stderr
    assert "terminate called" not in done.stderr

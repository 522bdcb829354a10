"""Prometheus finds every rank of a real job, by HTTP and by file, and renames no label."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from health_exporter.cli import main
from tests.stack.conftest import StartPrometheus
from tests.stack.prometheus_server import PrometheusServer, require_tool

WORLD_SIZE = 3
RUN = "found"

# Trains until its standard input ends; or, told "die", dies as by `kill -9`.
TRAINER = f"""
import datetime, os, signal, sys, threading, time
import torch
import torch.distributed as dist
from health_exporter import HealthExporter

told = []
def listen():
    told.append(sys.stdin.readline().strip())
threading.Thread(target=listen, daemon=True).start()

with HealthExporter(
    run={RUN!r}, port=0, address="127.0.0.1", receipt_dir=sys.argv[1],
    beat_interval_s=0.2, beat_timeout_s=5, linger_s=0,
) as exporter:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    if exporter.rank == 0:
        print(exporter.url, flush=True)
    step = 0
    while True:
        stop = torch.tensor([float(bool(told))])
        if told and told[0] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.all_reduce(stop)
        except RuntimeError:  # a peer is dead; stay, as a trainer in a collective would
            while not told:
                time.sleep(0.05)
            break
        if stop.item():
            break
        exporter.observe_step(step, 2.0)
        step += 1
        time.sleep(0.05)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job of `WORLD_SIZE` processes."""

    ranks: list[subprocess.Popen[str]]
    url: str  # of rank 0's /targets
    receipts: Path

    def addresses(self) -> list[str]:
        """What /targets lists."""
        with urllib.request.urlopen(self.url, timeout=10) as answer:
            return [address for entry in json.load(answer) for address in entry["targets"]]


def _free_port() -> int:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    receipts = tmp_path / "receipts"
    environ = {
        **os.environ,
        "WORLD_SIZE": str(WORLD_SIZE),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    with contextlib.ExitStack() as running:
        ranks = []
        for rank in range(WORLD_SIZE):
            process = subprocess.Popen(
                [sys.executable, "-c", TRAINER, str(receipts)],
                env={**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                cwd=Path(__file__).parents[2],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            running.enter_context(process)
            running.callback(process.kill)
            ranks.append(process)
        assert ranks[0].stdout is not None
        url = ranks[0].stdout.readline().strip()
        assert url, "rank 0 did not start"
        yield Job(ranks=ranks, url=url.replace("/metrics", "/targets"), receipts=receipts)


def config(**discovery: Any) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [{"job_name": "trainer", **discovery}],
    }


def check(content: dict[str, Any], folder: Path) -> None:
    """`promtool check config` accepts it, and the files it names."""
    path = folder / "checked.yml"
    path.write_text(yaml.safe_dump(content))
    done = subprocess.run(
        [require_tool("promtool"), "check", "config", str(path)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def check_every_rank_is_scraped_under_its_own_labels(server: PrometheusServer) -> None:
    server.wait_until(f"count(up == 1) == {WORLD_SIZE}")
    # The standing has all ranks, and each rank's own series has come.
    server.wait_until(f"count(training_health_rank_step > 0) == {WORLD_SIZE}")
    found = server.query("training_health_rank_step")
    assert sorted((labels["run"], labels["rank"]) for labels, _ in found) == [
        (RUN, str(rank)) for rank in range(WORLD_SIZE)
    ]
    assert len({labels["instance"] for labels, _ in found}) == WORLD_SIZE
    assert all(labels["job"] == "trainer" for labels, _ in found)
    names = server.get("/api/v1/labels")
    assert not [name for name in names if name.startswith(("exported_", "__meta"))]


@pytest.mark.timeout(180)
def test_prometheus_finds_every_rank_over_http_and_goes_on_missing_a_dead_one(
    job: Job, prometheus: StartPrometheus, tmp_path: Path
) -> None:
    content = config(http_sd_configs=[{"url": job.url, "refresh_interval": "1s"}])
    check(content, tmp_path)
    server = prometheus(config=content)

    check_every_rank_is_scraped_under_its_own_labels(server)
    targets = server.get("/api/v1/targets")["activeTargets"]
    discovered = [target["discoveredLabels"] for target in targets]
    assert {labels["__meta_training_health_rank"] for labels in discovered} == {"0", "1", "2"}
    assert {labels["__meta_training_health_run"] for labels in discovered} == {RUN}

    dying = job.ranks[2]
    assert dying.stdin is not None
    dying.stdin.write("die\n")
    dying.stdin.flush()
    dying.wait(30)
    server.wait_until('training_health_ranks{status="dead"} == 1')
    [(suspect, _)] = server.wait_until("training_health_suspect_rank{reason='dead'}")
    assert suspect["rank"] == "2"
    server.wait_until("count(up == 0) == 1 and count(up) == 3")
    assert len(job.addresses()) == WORLD_SIZE


@pytest.mark.timeout(180)
def test_prometheus_finds_every_rank_by_the_file_that_their_registrations_give(
    job: Job, prometheus: StartPrometheus, tmp_path: Path
) -> None:
    out = tmp_path / "targets" / "runs.json"
    out.parent.mkdir()
    argv = ["targets", "--receipts", str(job.receipts), "--out", str(out)]
    out.write_text("[]\n")
    content = config(file_sd_configs=[{"files": [str(out)], "refresh_interval": "1s"}])
    server = prometheus(config=content)

    while len(json.loads(out.read_text())) < WORLD_SIZE:  # bounded by the test's time
        assert main(argv) == 0
    check(content, tmp_path)

    check_every_rank_is_scraped_under_its_own_labels(server)

    for process in job.ranks:
        assert process.stdin is not None
        process.stdin.close()
    assert [process.wait(30) for process in job.ranks] == [0] * WORLD_SIZE
    assert main(argv) == 0
    assert json.loads(out.read_text()) == []
    server.wait_until("absent(up)")

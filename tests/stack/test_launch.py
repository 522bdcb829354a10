"""The same three lines on every rank, under each launcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from health_exporter.runtime.receipt_reader import read_receipt
from tests.stack.trainer_script import REPOSITORY

TRAINER = """
import json, os, sys, urllib.request
from health_exporter import HealthExporter
%s
with HealthExporter(
    run="r", port=0, address="127.0.0.1", receipt_dir=sys.argv[1], linger_s=0
) as exporter:
    %s
    for step in range(5):
        loss, grad_norm = train_step(step)
        exporter.observe_step(step, loss, grad_norm=grad_norm, batch_size=8)
    page = urllib.request.urlopen(exporter.url, timeout=20).read().decode()
    names = sorted({line.split("{")[0] for line in page.splitlines() if line[:8] == "training"})
    with open(os.path.join(sys.argv[1], f"seen-{exporter.rank}.json"), "w") as file:
        json.dump([vars_of(exporter.identity), names, exporter.snapshot().own.step], file)
"""
DEFINITIONS = """
def vars_of(identity):
    return [identity.rank, identity.local_rank, identity.world_size]
def train_step(step):
    return 2.0, 1.0
"""
DDP = """
import torch
import torch.distributed as dist
model = None
def train_step(step):
    global model
    if model is None:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    loss = model(torch.ones(2, 4)).square().mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    model.zero_grad()
    return loss.detach(), norm
"""


def seen(folder: Path) -> dict[int, tuple[list[int], list[str], int]]:
    found: dict[int, Any] = {}
    for path in folder.glob("seen-*.json"):
        identity, names, step = json.loads(path.read_text())
        found[identity[0]] = identity, names, step
    return found


def check(folder: Path, identities: list[list[int]]) -> None:
    found = seen(folder)
    assert [found[rank][0] for rank in sorted(found)] == identities
    for rank, (_, names, step) in found.items():
        assert step == 4
        assert "training_health_rank_step" in names
        assert ("training_health_steps_total" in names) == (rank == 0)
    receipt = read_receipt(folder)
    assert receipt["status"] == "finished"
    assert (receipt["n_steps"], receipt["last_step"]) == (5, 4)
    assert receipt["world_size"] == len(identities)


def test_torchrun(tmp_path: Path):
    script = tmp_path / "train.py"
    join = 'dist.init_process_group("gloo")'
    script.write_text(TRAINER % (DEFINITIONS + DDP, join))
    folder = tmp_path / "receipts"
    folder.mkdir()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--standalone", "--nproc-per-node=2", str(script), str(folder)),
        ],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "observation refused" not in done.stderr
    check(folder, [[0, 0, 2], [1, 1, 2]])
    receipt = read_receipt(folder)
    assert receipt["framework"].startswith("pytorch ")
    assert receipt["ranks"]["dead"] == receipt["ranks"]["stuck"] == 0


LAUNCHERS: dict[str, list[dict[str, str]]] = {
    "alone": [{}],
    "Slurm": [
        {"SLURM_PROCID": f"{r}", "SLURM_LOCALID": f"{r}", "SLURM_NTASKS": "2"} for r in range(2)
    ],
    "Open MPI": [
        {
            "OMPI_COMM_WORLD_RANK": f"{r}",
            "OMPI_COMM_WORLD_LOCAL_RANK": f"{r}",
            "OMPI_COMM_WORLD_SIZE": "2",
        }
        for r in range(2)
    ],
    "plain processes": [{"RANK": f"{r}", "WORLD_SIZE": "2"} for r in range(2)],
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_without_a_store(tmp_path: Path, launcher: str):
    """As under a launcher that only sets its variables: no torch, no rendezvous."""
    environs = LAUNCHERS[launcher]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TRAINER % (DEFINITIONS, "pass"), str(tmp_path)],
            cwd=REPOSITORY,
            env={**os.environ, **environ},
            stderr=subprocess.PIPE,
            text=True,
        )
        for environ in environs
    ]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert "Traceback" not in errors
    local = 0 if launcher == "plain processes" else 1
    identities = [[r, r * local, len(environs)] for r in range(len(environs))]
    check(tmp_path, identities)

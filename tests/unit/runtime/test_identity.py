"""Which process of the job this is, as each launcher tells it."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from health_exporter import SettingsError
from health_exporter.runtime.identity import Identity
from health_exporter.runtime.settings import Settings

TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "4",
}
SLURM = {
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "2",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_NTASKS": "64",
}


def find(environ: dict[str, str], **settings: Any) -> tuple[int, int, int]:
    found = Identity.find(Settings(run="r", **settings), environ)
    assert found.host == socket.gethostname()
    return found.rank, found.local_rank, found.world_size


def test_alone():
    assert find({}) == (0, 0, 1)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [(TORCHRUN, (5, 1, 8)), (OPEN_MPI, (3, 0, 4)), (SLURM, (9, 2, 16))],
)
def test_under_a_launcher(environ: dict[str, str], expected: tuple[int, int, int]):
    assert find(environ) == expected


def test_under_slurm_that_tells_only_the_job():
    assert find({"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NTASKS": "2"}) == (1, 1, 2)
    assert find({"SLURM_PROCID": "1", "SLURM_NPROCS": "2"}) == (1, 0, 2)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({**SLURM, **TORCHRUN}, (5, 1, 8)),  # srun starts torchrun on each node
        ({**SLURM, **OPEN_MPI}, (3, 0, 4)),  # mpirun inside an allocation
        ({**OPEN_MPI, **TORCHRUN}, (5, 1, 8)),
    ],
)
def test_the_innermost_launcher_is_right(environ: dict[str, str], expected: tuple[int, int, int]):
    assert find(environ) == expected


def test_an_allocation_without_a_task_is_one_process():
    assert find({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "64"}) == (0, 0, 1)
    assert find({"WORLD_SIZE": "8"}) == (0, 0, 1)


def test_settings_win_one_by_one():
    assert find(TORCHRUN, rank=2) == (2, 1, 8)
    assert find(TORCHRUN, local_rank=0) == (5, 0, 8)
    assert find(TORCHRUN, world_size=16) == (5, 1, 16)
    assert find({}, rank=3, local_rank=1, world_size=4) == (3, 1, 4)
    assert find({}, rank=3) == (3, 0, 4)  # there are at least these


def test_empty_variables_are_not_there():
    assert find({"RANK": "", **OPEN_MPI}) == (3, 0, 4)
    assert find({**TORCHRUN, "LOCAL_RANK": ""}) == (5, 0, 8)


def test_the_attempt():
    def attempt(environ: dict[str, str]) -> int:
        return Identity.find(Settings(run="r"), environ).attempt

    assert attempt({}) == 0
    assert attempt({"TORCHELASTIC_RESTART_COUNT": "2", "SLURM_RESTART_COUNT": "1"}) == 2
    assert attempt({"SLURM_RESTART_COUNT": "1"}) == 1


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({**TORCHRUN, "RANK": "one"}, "RANK must be an integer, got 'one'"),
        ({**TORCHRUN, "RANK": "1.0"}, "RANK must be an integer"),
        ({**TORCHRUN, "RANK": "8"}, "rank must be within 0..world_size-1=7, got 8"),
        ({**TORCHRUN, "RANK": "-1"}, "got -1"),
        ({"TORCHELASTIC_RESTART_COUNT": "x"}, "TORCHELASTIC_RESTART_COUNT"),
    ],
)
def test_bad_values_are_an_error(environ: dict[str, str], said: str):
    with pytest.raises(SettingsError, match=said):
        find(environ)


def test_every_bad_value_is_reported():
    with pytest.raises(SettingsError) as caught:
        find({"RANK": "a", "LOCAL_RANK": "b", "WORLD_SIZE": "c", "SLURM_RESTART_COUNT": "d"})
    assert len(caught.value.problems) == 4

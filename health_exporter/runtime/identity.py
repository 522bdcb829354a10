"""Which process of the job this is."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from health_exporter.errors import SettingsError
from health_exporter.runtime.settings import Settings

# Launchers' variables for rank, local rank and world size, first match first. torchrun stands
# first because Slurm often starts it, and Open MPI before Slurm because mpirun is often started
# inside an allocation; the innermost launcher is right. Slurm's STEP_NUM_TASKS comes from srun;
# NTASKS alone is the allocation's.
_LAUNCHERS = (
    ("RANK", "LOCAL_RANK", ("WORLD_SIZE",)),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    ("SLURM_PROCID", "SLURM_LOCALID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")),
)
_ATTEMPTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """This process among the job's processes.

    Args:
        rank: Its number, 0 to `world_size` - 1.
        local_rank: Its number on its host.
        world_size: Processes in the job.
        host: Name of the host.
        attempt: How often the launcher has restarted the job.
    """

    rank: int
    local_rank: int
    world_size: int
    host: str
    attempt: int

    @classmethod
    def find(cls, settings: Settings, environ: Mapping[str, str]) -> Identity:
        """From the settings, else from what the launcher has set, else one process alone.

        Raises:
            SettingsError: A launcher's variable is no number, or the rank is not below the world
                size.
        """
        problems: list[str] = []

        def read(*names: str) -> int | None:
            for name in names:
                if environ.get(name, "") != "":
                    try:
                        return int(environ[name])
                    except ValueError:
                        problems.append(f"{name} must be an integer, got {environ[name]!r}")
            return None

        rank = local_rank = world_size = None
        for rank_name, local_name, size_names in _LAUNCHERS:
            if environ.get(rank_name, "") != "":
                rank, local_rank, world_size = read(rank_name), read(local_name), read(*size_names)
                break
        rank = rank if settings.rank is None else settings.rank
        rank = 0 if rank is None else rank
        local_rank = local_rank if settings.local_rank is None else settings.local_rank
        world_size = world_size if settings.world_size is None else settings.world_size
        if world_size is None:
            world_size = rank + 1
        if not problems and not 0 <= rank < world_size:
            problems.append(f"rank must be within 0..world_size-1={world_size - 1}, got {rank}")
        attempt = read(*_ATTEMPTS)
        if problems:
            raise SettingsError(problems)
        return cls(
            rank=rank,
            local_rank=0 if local_rank is None else local_rank,
            world_size=world_size,
            host=socket.gethostname(),
            attempt=attempt or 0,
        )

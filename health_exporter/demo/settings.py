"""How the demo is configured; the launcher checks it, and the ranks read it from a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from health_exporter.demo.fault import FAULTS
from health_exporter.errors import SettingsError
from health_exporter.runtime.settings import DEFAULT_PORT

# A baseline is judged against once it has 20 values; ten more, so that they are not the very first.
_STEPS_BEFORE_A_JUMP = 30

# The losses of a global batch of this size are smooth enough that a healthy run raises no alarm:
# many short sequences, because neighbouring text is alike.
_GLOBAL_BATCH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """Settings of one demo run; immutable, checked when built.

    Raises:
        SettingsError: One or more values are out of range; all of them are named.
    """

    steps: int = 400
    """Optimizer steps. The default takes about a minute on two cores."""

    ranks: int = 2
    """Processes that train together (>= 1)."""

    port: int = DEFAULT_PORT
    """Port of rank 0's metrics; the next ranks have the next ports. 0 takes free ones."""

    out: str = "health-demo"
    """Folder for the checkpoint, the receipts and the log."""

    seed: int = 0
    """Of the weights and of the order of the text (>= 0)."""

    run: str = "demo"
    """Name of the run, the `run` label of its metrics."""

    fault: str = "none"
    """One of `FAULTS`."""

    at_step: int | None = None
    """Step of the fault; None takes one at three fifths of the run."""

    linger_s: float = 0.0
    """How long the endpoints stay at the end for one more scrape, seconds."""

    fault_hold_s: float = 60.0
    """How long a hung or stopped rank is left so, seconds, before the job is ended."""

    n_layer: int = 4
    n_head: int = 4
    d_model: int = 128
    seq_len: int = 64
    """Shape of the model: 0.8 million parameters, about a tenth of a second a step on a core."""

    learning_rate: float = 2e-3
    """Peak of the schedule; the largest at which five seeds out of five train without a jump."""

    def __post_init__(self) -> None:
        problems = [
            f"--{name} must be >= {least}, got {value}"
            for name, value, least in (
                ("steps", self.steps, 1),
                ("ranks", self.ranks, 1),
                ("seed", self.seed, 0),
                ("linger", self.linger_s, 0),
                ("fault-hold", self.fault_hold_s, 0),
            )
            if not value >= least
        ]
        if self.ranks > _GLOBAL_BATCH:
            problems.append(f"--ranks must be <= {_GLOBAL_BATCH}, got {self.ranks}")
        if not 0 <= self.port <= 65535 - self.ranks + 1:
            problems.append(f"--port must leave a port below 65536 for each rank, got {self.port}")
        if not self.run:
            problems.append("--run must not be empty")
        if not self.out:
            problems.append("--out must not be empty")
        if self.fault not in FAULTS:
            problems.append(f"--fault must be one of {', '.join(FAULTS)}, got {self.fault!r}")
        if not problems:
            problems = self._fault_problems()
        if problems:
            raise SettingsError(problems)

    def _fault_problems(self) -> list[str]:
        """What is wrong with the fault's step, all other values being in range."""
        fault = FAULTS[self.fault]
        if self.fault == "none":
            return [] if self.at_step is None else [f"--at-step {self.at_step} needs a --fault"]
        problems = []
        if fault.needs_peer and self.ranks < 2:
            problems.append(f"--fault {self.fault} needs --ranks >= 2, got {self.ranks}")
        least = _STEPS_BEFORE_A_JUMP if fault.judged_by_baseline else 1
        if fault.resumes:
            least = max(least, self.checkpoint_every)
        # A resume has something left to do, and a spike has a step after it to show that it ended.
        most = self.steps - 2
        if not least <= self.fault_step <= most:
            given = f"--steps {self.steps}" if self.at_step is None else f"--at-step {self.at_step}"
            room = (
                f"use {least} to {most}"
                if least <= most and self.at_step is not None
                else f"use --steps {max(least * 5 // 3 + 2, least + 2)} or more"
            )
            problems.append(f"{given} leaves no room for --fault {self.fault}: {room}")
        return problems

    @property
    def fault_step(self) -> int:
        """Step in which the fault happens."""
        return self.steps * 3 // 5 if self.at_step is None else self.at_step

    @property
    def checkpoint_every(self) -> int:
        """Steps from one checkpoint to the next: about eight in a run."""
        return max(1, self.steps // 8)

    @property
    def warmup_steps(self) -> int:
        """Steps over which the learning rate rises: a tenth of the run."""
        return max(1, self.steps // 10)

    @property
    def batch_per_rank(self) -> int:
        """Sequences a rank takes in a step; the ranks share one global batch."""
        return _GLOBAL_BATCH // self.ranks

    @property
    def batch_size(self) -> int:
        """Sequences in a step, all ranks together."""
        return self.batch_per_rank * self.ranks

    @property
    def checkpoint_path(self) -> Path:
        """The newest checkpoint."""
        return Path(self.out) / "checkpoint.pt"

    @property
    def receipt_dir(self) -> Path:
        """Where the exporter puts its receipts, in a folder named after the run."""
        return Path(self.out) / "receipts"

    def write(self, path: Path) -> None:
        """Write the settings where each rank reads them."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> DemoSettings:
        """The settings that `write` has written."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))
